package dedupe_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/misuse"
)

// newMessage gives a message with the metadata in pairs.
func newMessage(uuid, payload string, metadata ...string) *message.Message {
	msg := message.NewMessage(uuid, []byte(payload))
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata.Set(metadata[i], metadata[i+1])
	}
	return msg
}

func TestKeys(t *testing.T) {
	t.Parallel()
	const (
		missing   = "missing"
		malformed = "malformed"
	)
	long := strings.Repeat("x", 512)
	firstOf := dedupe.FirstOf(dedupe.Metadata("event_id"), dedupe.JSONField("id"), dedupe.MessageUUID)
	tests := map[string]struct {
		key   dedupe.KeyFunc
		msg   *message.Message
		want  string
		fault string
	}{
		"default is the UUID":  {nil, newMessage("u1", `{"id":"e1"}`), "u1", ""},
		"default, no UUID":     {nil, newMessage("", `{"id":"e1"}`), "", missing},
		"UUID":                 {dedupe.MessageUUID, newMessage("u1", ""), "u1", ""},
		"no UUID":              {dedupe.MessageUUID, newMessage("", ""), "", missing},
		"UUID of 512 bytes":    {dedupe.MessageUUID, newMessage(long, ""), long, ""},
		"UUID of 513 bytes":    {dedupe.MessageUUID, newMessage(long+"x", ""), "", malformed},
		"UUID, no UTF-8":       {dedupe.MessageUUID, newMessage("a\xff", ""), "", malformed},
		"UUID with a NUL":      {dedupe.MessageUUID, newMessage("a\x00", ""), "", malformed},
		"UUID of blanks":       {dedupe.MessageUUID, newMessage(" ", ""), " ", ""},
		"metadata":             {dedupe.Metadata("event_id"), newMessage("u1", "", "event_id", "e1"), "e1", ""},
		"metadata, absent":     {dedupe.Metadata("event_id"), newMessage("u1", "", "Event_id", "e1"), "", missing},
		"metadata, empty":      {dedupe.Metadata("event_id"), newMessage("u1", "", "event_id", ""), "", missing},
		"metadata, nil":        {dedupe.Metadata("event_id"), &message.Message{}, "", missing},
		"metadata, 513 bytes":  {dedupe.Metadata("event_id"), newMessage("u1", "", "event_id", long+"x"), "", malformed},
		"metadata, no UTF-8":   {dedupe.Metadata("event_id"), newMessage("u1", "", "event_id", "a\xff"), "", malformed},
		"JSON":                 {dedupe.JSONField("id"), newMessage("u1", `{"id":"e1"}`), "e1", ""},
		"JSON, nested":         {dedupe.JSONField("data.object.id"), newMessage("u1", `{"data":{"object":{"id":"e1"}}}`), "e1", ""},
		"JSON, number":         {dedupe.JSONField("id"), newMessage("u1", `{"id":900719925474099312345}`), "900719925474099312345", ""},
		"JSON, absent":         {dedupe.JSONField("id"), newMessage("u1", `{}`), "", missing},
		"JSON, null":           {dedupe.JSONField("id"), newMessage("u1", `{"id":null}`), "", missing},
		"JSON, empty":          {dedupe.JSONField("id"), newMessage("u1", `{"id":""}`), "", missing},
		"JSON, tombstone":      {dedupe.JSONField("id"), &message.Message{}, "", missing},
		"JSON, object":         {dedupe.JSONField("id"), newMessage("u1", `{"id":{}}`), "", malformed},
		"JSON, boolean":        {dedupe.JSONField("id"), newMessage("u1", `{"id":false}`), "", malformed},
		"JSON, 1.0":            {dedupe.JSONField("id"), newMessage("u1", `{"id":1.0}`), "", malformed},
		"JSON, 1e3":            {dedupe.JSONField("id"), newMessage("u1", `{"id":1e3}`), "", malformed},
		"JSON, twice":          {dedupe.JSONField("id"), newMessage("u1", `{"id":"e1","id":"e2"}`), "", malformed},
		"JSON, bytes after":    {dedupe.JSONField("id"), newMessage("u1", `{"id":"e1"}]`), "", malformed},
		"JSON, NUL":            {dedupe.JSONField("id"), newMessage("u1", `{"id":"a\u0000"}`), "", malformed},
		"JSON, no UTF-8":       {dedupe.JSONField("id"), newMessage("u1", "{\"id\":\"a\xff\"}"), "", malformed},
		"JSON, 513 bytes":      {dedupe.JSONField("id"), newMessage("u1", `{"id":"x`+long+`"}`), "", malformed},
		"JSON, a long number":  {dedupe.JSONField("id"), newMessage("u1", `{"id":1`+strings.Repeat("0", 512)+`}`), "", malformed},
		"no JSON":              {dedupe.JSONField("id"), newMessage("u1", `id=e1`), "", malformed},
		"first":                {firstOf, newMessage("u1", `{"id":"e1"}`, "event_id", "m1"), "m1", ""},
		"second":               {firstOf, newMessage("u1", `{"id":"e1"}`), "e1", ""},
		"third":                {firstOf, newMessage("u1", `{"id":null}`, "event_id", ""), "u1", ""},
		"none":                 {firstOf, newMessage("", `{}`), "", missing},
		"malformed before":     {firstOf, newMessage("u1", `{"id":{}}`), "", malformed},
		"malformed after":      {firstOf, newMessage("\xff", `{"id":"e1"}`), "e1", ""},
		"first of one":         {dedupe.FirstOf(dedupe.MessageUUID), newMessage("u1", ""), "u1", ""},
		"first of, own empty":  {dedupe.FirstOf(own("", nil), dedupe.MessageUUID), newMessage("u1", ""), "u1", ""},
		"first of, own fault":  {dedupe.FirstOf(own("", errors.New("no")), dedupe.MessageUUID), newMessage("u1", ""), "", malformed},
		"own":                  {own("e1", nil), newMessage("u1", ""), "e1", ""},
		"own, empty":           {own("", nil), newMessage("u1", ""), "", missing},
		"own, too long":        {own(long+"x", nil), newMessage("u1", ""), "", malformed},
		"own, an error":        {own("e1", errors.New("no")), newMessage("u1", ""), "", malformed},
		"own, missing":         {own("", fmt.Errorf("no header: %w", dedupe.ErrMissingKey)), newMessage("u1", ""), "", missing},
		"CloudEvent, Kafka":    {dedupe.CloudEventID, newMessage("u1", "x", "ce_id", "e1", "ce_source", "/s"), "e1", ""},
		"CloudEvent, HTTP":     {dedupe.CloudEventID, newMessage("u1", "x", "ce-id", "e1"), "e1", ""},
		"CloudEvent, net/http": {dedupe.CloudEventID, newMessage("u1", "x", "Ce-Id", "e1"), "e1", ""},
		"CloudEvent, AMQP":     {dedupe.CloudEventID, newMessage("u1", "x", "cloudEvents:id", "e1"), "e1", ""},
		"CloudEvent, AMQP 2":   {dedupe.CloudEventID, newMessage("u1", "x", "cloudEvents_id", "e1"), "e1", ""},
		"CloudEvent, JSON":     {dedupe.CloudEventID, newMessage("u1", "\n"+`{"specversion":"1.0","id":"e1","source":"/s"}`), "e1", ""},
		"CloudEvent, no id":    {dedupe.CloudEventID, newMessage("u1", `{"specversion":"1.0"}`), "", missing},
		"an object's id":       {dedupe.CloudEventID, newMessage("u1", `{"id":"card"}`), "", missing},
		"no JSON, no id":       {dedupe.CloudEventID, newMessage("u1", "\x00Avro"), "", missing},
		"CloudEvent, nothing":  {dedupe.CloudEventID, newMessage("u1", " "), "", missing},
		"CloudEvent, cut":      {dedupe.CloudEventID, newMessage("u1", `{"specversion":"1.0","id":"e1"`), "", malformed},
		"CloudEvent, long":     {dedupe.CloudEventID, newMessage("u1", "", "ce_id", long+"x"), "", malformed},
		"source and id":        {dedupe.CloudEventSourceID, newMessage("u1", "x", "ce_id", "e1", "ce_source", "/s"), "/s e1", ""},
		"source and id, JSON":  {dedupe.CloudEventSourceID, newMessage("u1", `{"specversion":"1.0","id":"e 1","source":"/s"}`), "/s e 1", ""},
		"no source":            {dedupe.CloudEventSourceID, newMessage("u1", "x", "ce_id", "e1"), "", missing},
		"source, no id":        {dedupe.CloudEventSourceID, newMessage("u1", "x", "ce_source", "/s"), "", missing},
		"source with a space":  {dedupe.CloudEventSourceID, newMessage("u1", "x", "ce_id", "e1", "ce_source", "/s x"), "", malformed},
		"source and id, long":  {dedupe.CloudEventSourceID, newMessage("u1", "x", "ce_id", long, "ce_source", "/s"), "", malformed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, err := dedupe.Config{Key: test.key}.EventID(test.msg)
			require.Equal(t, test.want, id)
			if test.fault == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, dedupe.ErrInvalidKey)
			require.Equal(t, test.fault == missing, errors.Is(err, dedupe.ErrMissingKey), "%v", err)
		})
	}
}

func own(id string, err error) dedupe.KeyFunc {
	return func(*message.Message) (string, error) { return id, err }
}

func TestKeyErrorsNameTheFieldAndTheMessage(t *testing.T) {
	t.Parallel()
	const secret = "4111111111111111"
	tests := map[string]struct {
		key  dedupe.KeyFunc
		msg  *message.Message
		want []string
	}{
		"UUID":          {nil, newMessage("", secret), []string{"UUID is empty"}},
		"metadata":      {dedupe.Metadata("event_id"), newMessage("u1", secret, "event_id", secret+"\xff"), []string{`"u1"`, `metadata "event_id" is not valid UTF-8`}},
		"JSON":          {dedupe.JSONField("data.id"), newMessage("u1", `{"data":{"id":["`+secret+`"]}}`), []string{`"u1"`, `"data.id" is an array`}},
		"JSON, missing": {dedupe.JSONField("data.id"), newMessage("u1", `{"data":{"no":"`+secret+`"}}`), []string{`"u1"`, `"data.id"`}},
		"JSON, cut":     {dedupe.JSONField("id"), newMessage("u1", `{"id":"`+secret), []string{`"u1"`, "JSON", "at byte 23"}},
		"CloudEvent":    {dedupe.CloudEventID, newMessage("u1", `{"specversion":"1.0","id":{"`+secret+`":1}}`), []string{`"u1"`, "CloudEvent", `"id" is an object`}},
		"first of":      {dedupe.FirstOf(dedupe.Metadata("a"), dedupe.JSONField("b")), newMessage("u1", `{"c":"`+secret+`"}`), []string{`metadata "a"`, `JSON field "b"`}},
		"own":           {own("", errors.New("no luck")), newMessage("u1", secret), []string{`"u1"`, "no luck"}},
		"hostile UUID":  {dedupe.Metadata("a"), newMessage("u\n"+strings.Repeat("x", 1000), ""), []string{`"u\nxxxx`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := dedupe.Config{Key: test.key}.EventID(test.msg)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), secret)
			require.Less(t, len(err.Error()), 300)
		})
	}
}

// A KeyFunc made from nonsense is the deployment's fault: its error must not send the messages to the poison queue.
func TestKeyFuncsMadeFromNonsense(t *testing.T) {
	t.Parallel()
	msg := newMessage("u1", `{"id":"e1"}`)
	for name, key := range map[string]dedupe.KeyFunc{
		"no path":           dedupe.JSONField(""),
		"empty name":        dedupe.JSONField("data..id"),
		"empty metadata":    dedupe.Metadata(""),
		"first of nothing":  dedupe.FirstOf(),
		"first of nil":      dedupe.FirstOf(dedupe.MessageUUID, nil),
		"first of nonsense": dedupe.FirstOf(dedupe.JSONField("data."), dedupe.MessageUUID),
	} {
		id, err := dedupe.Config{Key: key}.EventID(msg)
		require.Error(t, err, name)
		require.ErrorIs(t, err, misuse.Err, name)
		require.NotErrorIs(t, err, dedupe.ErrInvalidKey, name)
		require.Empty(t, id, name)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, dedupe.Config{}.Validate())
	require.NoError(t, dedupe.Config{Key: dedupe.MessageUUID, Table: "shop.Claims", Cache: 10, CacheTTL: 1, Disabled: true}.Validate())
	err := dedupe.Config{Table: "a.b.c", Cache: -1, CacheTTL: -1}.Validate()
	for _, field := range []string{"Table", "Cache:", "CacheTTL"} {
		require.ErrorContains(t, err, field)
	}
	require.Error(t, dedupe.Config{Table: strings.Repeat("x", 64)}.Validate())
}

// FuzzEventID: whatever comes out is a key that PostgreSQL takes; where JSON decides, two readers agree on it.
func FuzzEventID(f *testing.F) {
	f.Add("u1", `{"id":"e1"}`, "m1")
	f.Add("", `{"specversion":"1.0","id":17}`, "")
	f.Add("\xff", `{"data":{"id":"\u0000"}}`, "\x00")
	f.Add(strings.Repeat("x", 513), "", " ")
	f.Fuzz(func(t *testing.T, uuid, payload, metadata string) {
		msg := newMessage(uuid, payload, "event_id", metadata, "ce_source", metadata)
		for _, key := range []dedupe.KeyFunc{
			dedupe.MessageUUID, dedupe.Metadata("event_id"), dedupe.JSONField("id"), dedupe.CloudEventID, dedupe.CloudEventSourceID,
			dedupe.FirstOf(dedupe.JSONField("data.id"), dedupe.Metadata("event_id")),
		} {
			id, err := dedupe.Config{Key: key}.EventID(msg)
			if err != nil {
				require.ErrorIs(t, err, dedupe.ErrInvalidKey)
				require.Empty(t, id)
				continue
			}
			require.NotEmpty(t, id)
			require.LessOrEqual(t, len(id), 512)
			require.True(t, utf8.ValidString(id))
			require.NotContains(t, id, "\x00")
		}
		id, err := dedupe.JSONField("id")(msg)
		if err != nil {
			return
		}
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(payload), &members))
		var text string
		if json.Unmarshal(members["id"], &text) != nil {
			text = strings.TrimPrefix(string(members["id"]), "-0")
			id = strings.TrimPrefix(id, "0")
		}
		require.Equal(t, text, id)
	})
}

func BenchmarkEventID(b *testing.B) {
	payload := `{"id":"evt_1NG8Du2eZvKYlo2CUI79vXWy","object":"event","data":{"object":{"id":"card_1","note":"` +
		strings.Repeat("some text ", 80) + `"}},"created":1686089970}`
	msg := newMessage("0b1f3f6e-8a57-4c62-9d4a-4f5b2a1c9e11", payload, "event_id", "e1")
	for name, key := range map[string]dedupe.KeyFunc{
		"UUID":       nil,
		"Metadata":   dedupe.Metadata("event_id"),
		"JSON-1KB":   dedupe.JSONField("id"),
		"CloudEvent": dedupe.CloudEventID,
		"FirstOf":    dedupe.FirstOf(dedupe.Metadata("none"), dedupe.MessageUUID),
	} {
		b.Run(name, func(b *testing.B) {
			config := dedupe.Config{Key: key}
			b.ReportAllocs()
			for b.Loop() {
				if id, err := config.EventID(msg); name != "CloudEvent" && (err != nil || id == "") {
					b.Fatal(err)
				}
			}
		})
	}
}
