package outbox

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

func FuzzMetadataIsWrittenAsJSON(f *testing.F) {
	for _, text := range []string{"", "plain", "\"\\/\b\f\n\r\t\x01\x1f\x7f", "é\u2028\U0001F600", `{"a":"b"}`, "\u00ad", "<&>", "\xff", "a\x00"} {
		f.Add("key", text)
		f.Add(text, "value")
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		metadata := map[string]string{key: value, "other": "x"}
		encoded, err := encodeMetadata(metadata, nil)
		valid := checkText(key) == nil && checkText(value) == nil
		require.Equal(t, valid, err == nil)
		if !valid {
			return
		}
		require.True(t, utf8.ValidString(encoded))
		var decoded map[string]string
		require.NoError(t, json.Unmarshal([]byte(encoded), &decoded), encoded)
		require.Equal(t, metadata, decoded)
	})
}

func FuzzEnvelopeIsTheForwarders(f *testing.F) {
	f.Add("topic", "uuid", []byte("payload"), `{"a":"b"}`)
	f.Add("\x00\"", "", []byte{}, "")
	f.Fuzz(func(t *testing.T, topic, uuid string, payload []byte, metadata string) {
		if !utf8.ValidString(topic) || !utf8.ValidString(uuid) || !json.Valid([]byte(metadata)) && metadata != "" {
			return
		}
		sealed := seal(topic, uuid, payload, []byte(metadata))
		require.True(t, json.Valid(sealed), string(sealed))
		gotTopic, inner, err := openEnvelope(message.NewMessage("outer", sealed))
		if err != nil {
			return // the metadata is JSON and no object of strings
		}
		require.Equal(t, topic, gotTopic)
		require.Equal(t, uuid, inner.UUID)
		require.Equal(t, string(payload), string(inner.Payload))
	})
}

func TestMetadataIsSorted(t *testing.T) {
	t.Parallel()
	encoded, err := encodeMetadata(map[string]string{"c": "3", "a": "1", "b": "2"}, map[string]string{"aa": "no header"})
	require.NoError(t, err)
	require.Equal(t, `{"a":"1","aa":"no header","b":"2","c":"3"}`, encoded)
}

func TestKeyLocksNeverChange(t *testing.T) {
	t.Parallel()
	// Processes of different versions must take the same lock for a key.
	locks := newKeyLocks("outbox")
	require.Equal(t, int64(5530040457050323968), locks[0])
	require.Equal(t, locks[0]+1020, *locks.of("customer-1"))
	require.Equal(t, locks[0]+961, *locks.of(""))
}

func TestKeyLocksOfOutboxesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[int64]bool{}
	for _, topic := range []string{"outbox", "second", "third"} {
		for _, lock := range newKeyLocks(topic) {
			require.Positive(t, lock)
			require.False(t, seen[lock])
			seen[lock] = true
		}
		for _, lock := range []int64{readerLock(topic), newShardLocks(topic, 1, 16).door, newShardLocks(topic, 1, 16).shard} {
			require.False(t, seen[lock])
			seen[lock] = true
		}
	}
}

func TestKeysSpreadOverTheLocks(t *testing.T) {
	t.Parallel()
	locks := newKeyLocks("outbox")
	hits := map[int64]int{}
	for i := range 100 * buckets {
		hits[*locks.of("customer-" + string(rune('0'+i%10)) + string(rune(0x4e00+i/10)))]++
	}
	require.Len(t, hits, buckets)
	for _, n := range hits {
		require.Less(t, n, 200)
	}
}

func BenchmarkRow(b *testing.B) {
	config := Config{}
	config.setDefaults()
	r := newRows(config)
	msg := message.NewMessage("0197c6a0-aaaa-bbbb-cccc-ddddeeeeffff", make([]byte, 300))
	msg.Metadata.Set(PartitionKeyKey, "customer-1234")
	msg.Metadata.Set("type", "card.updated")
	headers := map[string]string{attempt.CorrelationIDKey: "0197c6a0-aaaa-bbbb-cccc-ddddeeeeffff"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.of("topic", msg, headers); err != nil {
			b.Fatal(err)
		}
	}
}
