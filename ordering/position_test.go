package ordering_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/misuse"
	"github.com/watermill-once/watermill-once/ordering"
)

// newMessage gives a message with the metadata in pairs.
func newMessage(uuid, payload string, metadata ...string) *message.Message {
	msg := message.NewMessage(uuid, []byte(payload))
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata.Set(metadata[i], metadata[i+1])
	}
	return msg
}

func uuid(msg *message.Message) (string, error) { return msg.UUID, nil }

func TestPositions(t *testing.T) {
	t.Parallel()
	fields := ordering.JSONFields("data.id", "data.version")
	metadata := ordering.Metadata("entity", "version")
	seconds := fields.WithUnixTime(time.Second)
	long := strings.Repeat("x", 512)
	number := func(n int64) ordering.Position { return ordering.Position{Entity: "card", Version: n} }
	clock := func(n int64) ordering.Position { return ordering.Position{Entity: "card", Version: n, Clock: true} }
	tied := func(tie string) ordering.Position {
		return ordering.Position{Entity: "card", Version: 7, TieBreak: tie}
	}
	event := func(version string) *message.Message {
		return newMessage("u1", `{"data":{"version":`+version+`,"id":"card"}}`)
	}
	tests := map[string]struct {
		position ordering.PositionFunc
		msg      *message.Message
		want     ordering.Position // zero: invalid
	}{
		"number":                  {fields, event("7"), number(7)},
		"negative":                {fields, event("-7"), number(-7)},
		"zero":                    {fields, event("0"), number(0)},
		"minus zero":              {fields, event("-0"), number(0)},
		"greatest":                {fields, event("9223372036854775807"), number(math.MaxInt64)},
		"least":                   {fields, event("-9223372036854775808"), number(math.MinInt64)},
		"too great":               {fields, event("9223372036854775808"), ordering.Position{}},
		"too small":               {fields, event("-9223372036854775809"), ordering.Position{}},
		"digits":                  {fields, event(`"7"`), number(7)},
		"negative digits":         {fields, event(`"-7"`), number(-7)},
		"padded digits":           {fields, event(`"0007"`), number(7)},
		"digits, greatest":        {fields, event(`"9223372036854775807"`), number(math.MaxInt64)},
		"digits, too great":       {fields, event(`"9223372036854775808"`), ordering.Position{}},
		"plus":                    {fields, event(`"+7"`), ordering.Position{}},
		"underscore":              {fields, event(`"1_000"`), ordering.Position{}},
		"hexadecimal":             {fields, event(`"0x7"`), ordering.Position{}},
		"space":                   {fields, event(`" 7"`), ordering.Position{}},
		"other digits":            {fields, event(`"٧"`), ordering.Position{}},
		"fraction":                {fields, event("7.0"), ordering.Position{}},
		"exponent":                {fields, event("7e0"), ordering.Position{}},
		"fraction as a string":    {fields, event(`"7.5"`), ordering.Position{}},
		"time":                    {fields, event(`"1970-01-01T00:00:01.5Z"`), clock(1_500_000)},
		"no version":              {fields, newMessage("u1", `{"data":{"id":"card"}}`), ordering.Position{}},
		"null":                    {fields, event("null"), ordering.Position{}},
		"empty":                   {fields, event(`""`), ordering.Position{}},
		"boolean":                 {fields, event("true"), ordering.Position{}},
		"word":                    {fields, event(`"v7"`), ordering.Position{}},
		"no entity":               {fields, newMessage("u1", `{"data":{"version":7}}`), ordering.Position{}},
		"empty entity":            {fields, newMessage("u1", `{"data":{"version":7,"id":""}}`), ordering.Position{}},
		"numeric entity":          {fields, newMessage("u1", `{"data":{"version":7,"id":12}}`), ordering.Position{Entity: "12", Version: 7}},
		"fractional entity":       {fields, newMessage("u1", `{"data":{"version":7,"id":1.5}}`), ordering.Position{}},
		"long entity":             {fields, newMessage("u1", `{"data":{"version":7,"id":"`+long+`"}}`), ordering.Position{Entity: long, Version: 7}},
		"too long an entity":      {fields, newMessage("u1", `{"data":{"version":7,"id":"x`+long+`"}}`), ordering.Position{}},
		"entity with a NUL":       {fields, newMessage("u1", `{"data":{"version":7,"id":"\u0000"}}`), ordering.Position{}},
		"entity twice":            {fields, newMessage("u1", `{"data":{"version":7,"id":"a","id":"b"}}`), ordering.Position{}},
		"bytes after":             {fields, newMessage("u1", `{"data":{"version":7,"id":"a"}} 1`), ordering.Position{}},
		"tombstone":               {fields, newMessage("u1", ""), ordering.Position{}},
		"metadata":                {metadata, newMessage("u1", "", "entity", "card", "version", "7"), number(7)},
		"metadata, time":          {metadata, newMessage("u1", "", "entity", "card", "version", "1970-01-01T00:00:01Z"), clock(1_000_000)},
		"metadata, no entity":     {metadata, newMessage("u1", "", "version", "7"), ordering.Position{}},
		"metadata, no version":    {metadata, newMessage("u1", "", "entity", "card"), ordering.Position{}},
		"metadata, bad entity":    {metadata, newMessage("u1", "", "entity", "a\xff", "version", "7"), ordering.Position{}},
		"metadata, bad version":   {metadata, newMessage("u1", "", "entity", "card", "version", "7 "), ordering.Position{}},
		"tie-break":               {fields.WithTieBreak(uuid), event("7"), tied("u1")},
		"tie-break, absent":       {fields.WithTieBreak(uuid), newMessage("", `{"data":{"version":7,"id":"card"}}`), ordering.Position{}},
		"tie-break, too long":     {fields.WithTieBreak(uuid), newMessage(long+"x", `{"data":{"version":7,"id":"card"}}`), ordering.Position{}},
		"tie-break, no UTF-8":     {fields.WithTieBreak(uuid), newMessage("\xff", `{"data":{"version":7,"id":"card"}}`), ordering.Position{}},
		"tie-break, no version":   {fields.WithTieBreak(uuid), newMessage("u1", `{}`), ordering.Position{}},
		"seconds":                 {seconds, event("1686089970"), clock(1_686_089_970_000_000)},
		"seconds, negative":       {seconds, event("-1"), clock(-1_000_000)},
		"seconds, too many":       {seconds, event("9223372036855"), ordering.Position{}},
		"seconds, most":           {seconds, event("9223372036854"), clock(9_223_372_036_854_000_000)},
		"seconds, least":          {seconds, event("-9223372036854"), clock(-9_223_372_036_854_000_000)},
		"seconds, too few":        {seconds, event("-9223372036855"), ordering.Position{}},
		"seconds, a time already": {seconds, event(`"1970-01-01T00:00:01Z"`), clock(1_000_000)},
		"milliseconds":            {fields.WithUnixTime(time.Millisecond), event("1686089970123"), clock(1_686_089_970_123_000)},
		"microseconds":            {fields.WithUnixTime(time.Microsecond), event("1686089970123456"), clock(1_686_089_970_123_456)},
		"nanoseconds":             {fields.WithUnixTime(time.Nanosecond), event("1686089970123456789"), clock(1_686_089_970_123_456)},
		"nanoseconds, negative":   {fields.WithUnixTime(time.Nanosecond), event("-1"), clock(-1)},
		"seconds and tie-break":   {seconds.WithTieBreak(uuid), event("1"), ordering.Position{Entity: "card", Version: 1_000_000, Clock: true, TieBreak: "u1"}},
		"own":                     {own(tied("u1"), nil), event("1"), tied("u1")},
		"own, no entity":          {own(ordering.Position{Version: 7}, nil), event("1"), ordering.Position{}},
		"own, bad tie-break":      {own(tied("\x00"), nil), event("1"), ordering.Position{}},
		"own, an error":           {own(tied(""), errors.New("no")), event("1"), ordering.Position{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			position, err := ordering.Config{Position: test.position}.PositionOf(test.msg)
			require.Equal(t, test.want, position)
			if test.want == (ordering.Position{}) {
				require.ErrorIs(t, err, ordering.ErrInvalidPosition)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func own(p ordering.Position, err error) ordering.PositionFunc {
	return func(*message.Message) (ordering.Position, error) { return p, err }
}

func TestPositionErrorsNameTheFieldAndTheMessage(t *testing.T) {
	t.Parallel()
	const secret = "4111111111111111"
	fields := ordering.JSONFields("data.id", "data.version")
	for name, test := range map[string]struct {
		position ordering.PositionFunc
		msg      *message.Message
		want     []string
	}{
		"entity":        {fields, newMessage("u1", `{"data":{"id":["`+secret+`"]}}`), []string{`"data.id" is an array`}},
		"no entity":     {fields, newMessage("u1", `{"data":{"version":`+secret+`}}`), []string{`entity`, `"data.id"`, "is empty or absent"}},
		"version":       {fields, newMessage("u1", `{"data":{"id":"x","version":"v`+secret+`"}}`), []string{`version`, `"data.version"`}},
		"great version": {fields, newMessage("u1", `{"data":{"id":"x","version":`+secret+secret+`}}`), []string{`"data.version"`}},
		"no version":    {fields, newMessage("u1", `{"data":{"id":"`+secret+`"}}`), []string{`"data.version"`, "is empty or absent"}},
		"cut":           {fields, newMessage("u1", `{"data":{"id":"`+secret), []string{"at byte"}},
		"unit":          {fields.WithUnixTime(time.Second), newMessage("u1", `{"data":{"id":"x","version":`+secret+`}}`), []string{"version", "1s"}},
		"metadata":      {ordering.Metadata("entity", "version"), newMessage("u1", secret, "entity", "x", "version", secret+"?"), []string{`metadata "version"`}},
		"tie-break":     {own(ordering.Position{Entity: "x"}, nil).WithTieBreak(func(*message.Message) (string, error) { return "", nil }), newMessage("u1", secret), []string{"tie-break"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ordering.Config{Position: test.position}.PositionOf(test.msg)
			for _, want := range append(test.want, `"u1"`) {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), secret)
		})
	}
}

// A PositionFunc made from nonsense is the deployment's fault: its error must not send the messages to the poison
// queue.
func TestPositionFuncsMadeFromNonsense(t *testing.T) {
	t.Parallel()
	fields := ordering.JSONFields("id", "version")
	for name, position := range map[string]ordering.PositionFunc{
		"nil":                    nil,
		"no path":                ordering.JSONFields("", "version"),
		"empty name":             ordering.JSONFields("id", "data."),
		"no metadata key":        ordering.Metadata("", "version"),
		"tie-break of nil":       fields.WithTieBreak(nil),
		"nonsensical tie-break":  fields.WithTieBreak(dedupe.JSONField("")),
		"nil with tie-break":     ordering.PositionFunc(nil).WithTieBreak(uuid),
		"nil with Unix time":     ordering.PositionFunc(nil).WithUnixTime(time.Second),
		"no unit":                fields.WithUnixTime(0),
		"odd unit":               fields.WithUnixTime(1500),
		"nonsense and tie-break": ordering.JSONFields("", "").WithTieBreak(uuid).WithUnixTime(time.Second),
	} {
		p, err := ordering.Config{Position: position}.PositionOf(newMessage("u1", `{"id":"card","version":7}`))
		require.Error(t, err, name)
		require.ErrorIs(t, err, misuse.Err, name)
		require.NotErrorIs(t, err, ordering.ErrInvalidPosition, name)
		require.Zero(t, p, name)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, ordering.Config{}.Validate())
	require.NoError(t, ordering.Config{Position: ordering.Metadata("a", "b"), Table: "shop.Versions"}.Validate())
	err := ordering.Config{Policy: 17, Table: "a.b.c"}.Validate()
	require.ErrorContains(t, err, "Policy")
	require.ErrorContains(t, err, "Table")
}

// FuzzPositionOf: whatever comes out is a position that PostgreSQL takes, and one text is one version wherever it
// stands.
func FuzzPositionOf(f *testing.F) {
	f.Add("card", "7", `{"id":"card","v":7}`)
	f.Add("", "2026-01-02T03:04:05.123456789+05:30", `{"id":1,"v":"2026-01-02T03:04:05Z"}`)
	f.Add("\xff", "-9223372036854775808", `{"id":"\ud800","v":1e3}`)
	f.Fuzz(func(t *testing.T, entity, version, payload string) {
		msg := newMessage("u1", payload, "entity", entity, "version", version)
		for _, position := range []ordering.PositionFunc{ordering.Metadata("entity", "version"), ordering.JSONFields("id", "v")} {
			p, err := ordering.Config{Position: position}.PositionOf(msg)
			if err != nil {
				require.ErrorIs(t, err, ordering.ErrInvalidPosition)
				require.Zero(t, p)
				continue
			}
			require.NotEmpty(t, p.Entity)
			require.LessOrEqual(t, len(p.Entity), 512)
			require.NotContains(t, p.Entity, "\x00")
			require.Equal(t, strings.ToValidUTF8(p.Entity, "?"), p.Entity)
		}
	})
}

func BenchmarkPositionOf(b *testing.B) {
	payload := `{"id":"evt_1NG8Du2eZvKYlo2CUI79vXWy","object":"event","data":{"object":{"id":"card_1","note":"` +
		strings.Repeat("some text ", 80) + `"}},"created":"2026-01-02T03:04:05.678Z","version":17}`
	msg := newMessage("u1", payload)
	for name, position := range map[string]ordering.PositionFunc{
		"number-1KB": ordering.JSONFields("data.object.id", "version"),
		"time-1KB":   ordering.JSONFields("data.object.id", "created"),
	} {
		b.Run(name, func(b *testing.B) {
			config := ordering.Config{Position: position}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := config.PositionOf(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
