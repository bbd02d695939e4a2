package jsonfield

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFind(t *testing.T) {
	tests := map[string]struct{ path, data, want string }{
		"string":                       {"id", `{"id":"e1"}`, "e1"},
		"number":                       {"id", `{"id":17}`, "17"},
		"negative":                     {"id", `{"id":-17}`, "-17"},
		"minus zero is zero":           {"id", `{"id":-0}`, "0"},
		"number beyond 64 bits":        {"id", `{"id":123456789012345678901234567890}`, "123456789012345678901234567890"},
		"string of digits":             {"id", `{"id":"017"}`, "017"},
		"empty string":                 {"id", `{"id":""}`, ""},
		"null":                         {"id", `{"id":null}`, ""},
		"absent":                       {"id", `{"ID":"e1","i":1}`, ""},
		"empty object":                 {"id", ` { } `, ""},
		"no data":                      {"id", ``, ""},
		"null document":                {"id", `null`, ""},
		"nested":                       {"data.object.id", `{"id":"no","data":{"id":"no","object":{"id":"e1"}}}`, "e1"},
		"null on the way":              {"data.object.id", `{"data":null}`, ""},
		"absent on the way":            {"data.object.id", `{"data":{"objects":1}}`, ""},
		"after everything":             {"id", "\t{\n\"a\" : [1, -2.5e+3, {\"id\":\"no\"}, [], true, false, null, \"\\u00e9\\n\"] ,\r \"id\" : \"e1\" }\n", "e1"},
		"escapes in the value":         {"id", `{"id":"\"\\\/\b\f\n\r\t\u00E9\ud83d\ude00x"}`, "\"\\/\b\f\n\r\té\U0001f600x"},
		"escapes in the name":          {"id", `{"\u0069d":"e1"}`, "e1"},
		"multi-byte":                   {"clé", `{"clé":"é😀"}`, "é😀"},
		"U+FFFD itself":                {"id", "{\"id\":\"\uFFFD\\uFFFD\"}", "\uFFFD\uFFFD"},
		"NUL is the caller's to judge": {"id", `{"id":"\u0000"}`, "\x00"},
		"twice, but elsewhere":         {"id", `{"a":{"id":1,"id":2},"x":1,"x":2,"id":"e1"}`, "e1"},
		"invalid UTF-8 elsewhere":      {"id", "{\"x\":\"\xff\",\"\xfe\":1,\"id\":\"e1\"}", "e1"},
		"lone surrogate elsewhere":     {"id", `{"x":"\ud800","\ud800":1,"id":"e1"}`, "e1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := New(test.path)
			require.NoError(t, err)
			texts := []string{"left over"}
			require.NoError(t, f.Find([]byte(test.data), texts))
			require.Equal(t, test.want, texts[0])
		})
	}
}

func TestFindFaults(t *testing.T) {
	const invalid = "payload is not one valid JSON value"
	tests := map[string]struct{ path, data, want string }{
		"object":                     {"id", `{"id":{}}`, `"id" is an object`},
		"array":                      {"id", `{"id":["e1"]}`, `"id" is an array`},
		"true":                       {"id", `{"id":true}`, `"id" is a boolean`},
		"false":                      {"id", `{"id":false}`, `"id" is a boolean`},
		"fraction":                   {"id", `{"id":1.0}`, "not written as an integer"},
		"exponent":                   {"id", `{"id":1e3}`, "not written as an integer"},
		"through an array":           {"data.id", `{"data":[{"id":"e1"}]}`, `"data.id" leads through an array`},
		"through a string":           {"data.id", `{"data":"id"}`, `"data.id" leads through a string`},
		"through a number":           {"data.id", `{"data":1}`, `"data.id" leads through a number`},
		"through a boolean":          {"data.id", `{"data":true}`, `"data.id" leads through a boolean`},
		"document is an array":       {"id", `[]`, `"id" leads through an array`},
		"document is a string":       {"id", `"id"`, `"id" leads through a string`},
		"twice":                      {"id", `{"id":"e1","id":"e2"}`, `"id" is there twice`},
		"twice the same":             {"id", `{"id":"e1","id":"e1"}`, `"id" is there twice`},
		"twice, once null":           {"id", `{"id":null,"id":"e1"}`, `"id" is there twice`},
		"twice, once escaped":        {"id", `{"id":"e1","\u0069\u0064":"e2"}`, `"id" is there twice`},
		"parent twice":               {"data.id", `{"data":{"id":"e1"},"data":{}}`, `"data.id" is there twice`},
		"invalid UTF-8":              {"id", "{\"id\":\"a\xff\"}", "not valid UTF-8"},
		"invalid UTF-8 and escape":   {"id", "{\"id\":\"\\n\xff\"}", "not valid UTF-8"},
		"encoded surrogate":          {"id", "{\"id\":\"\xed\xa0\x80\"}", "not valid UTF-8"},
		"lone high surrogate":        {"id", `{"id":"\ud83d"}`, "not valid UTF-8"},
		"high surrogate, then plain": {"id", `{"id":"\ud83dabcdef"}`, "not valid UTF-8"},
		"high surrogate twice":       {"id", `{"id":"\ud83d\ud83d"}`, "not valid UTF-8"},
		"lone low surrogate":         {"id", `{"id":"\ude00"}`, "not valid UTF-8"},
		"bytes after":                {"id", `{"id":"e1"}x`, invalid},
		"second document":            {"id", `{"id":"e1"}{"id":"e2"}`, invalid},
		"NUL after":                  {"id", "{\"id\":\"e1\"}\x00", invalid},
		"byte order mark":            {"id", "\ufeff{\"id\":\"e1\"}", invalid},
		"only space":                 {"id", " ", invalid},
		"cut":                        {"id", `{"id":"e1"`, invalid},
		"cut string":                 {"id", `{"id":"e1`, invalid},
		"cut escape":                 {"id", `{"id":"e1\`, invalid},
		"cut unicode escape":         {"id", `{"id":"e1\u00`, invalid},
		"fault after the field":      {"id", `{"id":"e1","x":tru}`, invalid},
		"trailing comma":             {"id", `{"id":"e1",}`, invalid},
		"single quotes":              {"id", `{'id':'e1'}`, invalid},
		"comment":                    {"id", `{"id":"e1"/**/}`, invalid},
		"leading zero":               {"id", `{"id":017}`, invalid},
		"plus":                       {"id", `{"id":+1}`, invalid},
		"bare minus":                 {"id", `{"id":-}`, invalid},
		"bare point":                 {"id", `{"id":1.}`, invalid},
		"NaN":                        {"id", `{"id":NaN}`, invalid},
		"control character":          {"id", "{\"id\":\"a\nb\"}", invalid},
		"unknown escape":             {"id", `{"id":"\x41"}`, invalid},
		"no hex":                     {"id", `{"id":"\u00g0"}`, invalid},
		"too deep":                   {"id", `{"x":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `}`, invalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := New(test.path)
			require.NoError(t, err)
			require.ErrorContains(t, f.Find([]byte(test.data), make([]string, 1)), test.want)
		})
	}
}

func TestFindSeveral(t *testing.T) {
	f, err := New("data.object.id", "data.object.version", "data.object.id", "id")
	require.NoError(t, err)
	texts := make([]string, 4)
	require.NoError(t, f.Find([]byte(`{"data":{"object":{"version":7,"id":"card"}},"id":"e1"}`), texts))
	require.Equal(t, []string{"card", "7", "card", "e1"}, texts)

	f, err = New("data", "data.id")
	require.NoError(t, err)
	require.ErrorContains(t, f.Find([]byte(`{"data":{"id":1}}`), make([]string, 2)), `"data" is an object`)
}

func TestFindTakesNoMemoryButTheTexts(t *testing.T) {
	f, err := New("data.object.id", "created")
	require.NoError(t, err)
	data := []byte(webhook)
	n := testing.AllocsPerRun(100, func() {
		var texts [2]string
		require.NoError(t, f.Find(data, texts[:]))
	})
	require.LessOrEqual(t, n, 2.0)
}

func TestNew(t *testing.T) {
	for _, path := range []string{"", ".", "a.", ".a", "a..b", "a\xff"} {
		_, err := New(path)
		require.Error(t, err, "%q", path)
	}
	_, err := New(strings.Split(strings.Repeat("a,", 64)+"a", ",")...)
	require.Error(t, err)
	f, err := New(strings.Split(strings.Repeat("a,", 63)+"a", ",")...)
	require.NoError(t, err)
	texts := make([]string, 64)
	require.NoError(t, f.Find([]byte(`{"a":1}`), texts))
	require.Equal(t, "1", texts[63])
}

// FuzzFind holds Find against encoding/json: what it accepts is valid JSON, and the texts are the same.
func FuzzFind(f *testing.F) {
	for _, seed := range []string{
		webhook, ``, `null`, `{"id":"e1"}`, `{"id":1}`, `{"id":-0}`, `{"id":1e3}`, `{"a":{"id":"x"}}`, `{"id":"\ud83d\ude00"}`,
		`{"id":"\ud83d"}`, `{"\u0069d":"x"}`, `{"id":1,"id":2}`, "{\"id\":\"\xff\"}", `[{"id":1}]`, `{"a":{"id":null},"id":[]}`,
	} {
		f.Add([]byte(seed))
	}
	finder, err := New("id", "a.id")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		texts := make([]string, 2)
		if finder.Find(data, texts) != nil {
			return
		}
		if len(data) == 0 {
			return
		}
		require.True(t, json.Valid(data))
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		var root map[string]any // not a struct, whose fields would match names of another case
		require.NoError(t, d.Decode(&root))
		inner, _ := root["a"].(map[string]any)
		for i, want := range []any{root["id"], inner["id"]} {
			switch want := want.(type) {
			case nil:
				require.Empty(t, texts[i])
			case string:
				require.Equal(t, want, texts[i])
			case json.Number:
				if want == "-0" {
					want = "0"
				}
				require.Equal(t, want.String(), texts[i])
			default:
				t.Fatalf("%T was accepted", want)
			}
		}
	})
}

// FuzzAccepts holds the other half: without a path to object to, whatever encoding/json calls valid is accepted.
func FuzzAccepts(f *testing.F) {
	for _, seed := range []string{webhook, `[1,-2.50e-7,"\u00e9",{}]`, `{"a":1,"a":2}`, `tru`, ` 0`, `"\ud800"`} {
		f.Add([]byte(seed))
	}
	finder, err := New()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 0 {
			require.Equal(t, json.Valid(data), finder.Find(data, nil) == nil)
		}
	})
}

func BenchmarkFind(b *testing.B) {
	data := []byte(webhook)
	finder, err := New("data.object.id", "created")
	require.NoError(b, err)
	b.Run("jsonfield", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			var texts [2]string
			if err := finder.Find(data, texts[:]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			var event struct {
				Created json.Number
				Data    struct{ Object struct{ ID string } }
			}
			if err := json.Unmarshal(data, &event); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// webhook is an event as payment services send it.
const webhook = `{
  "id": "evt_1NG8Du2eZvKYlo2CUI79vXWy",
  "object": "event",
  "api_version": "2019-02-19",
  "created": 1686089970,
  "data": {
    "object": {
      "id": "seti_1NG8Du2eZvKYlo2C9XMqbR0x",
      "object": "setup_intent",
      "application": null,
      "automatic_payment_methods": null,
      "cancellation_reason": null,
      "client_secret": "seti_1NG8Du2eZvKYlo2C9XMqbR0x_secret_O2CdhLwGFh2Aej7bCY7qp8jlIuyR8DJ",
      "created": 1686089970,
      "customer": null,
      "description": null,
      "flow_directions": null,
      "last_setup_error": null,
      "latest_attempt": null,
      "livemode": false,
      "mandate": null,
      "metadata": {"order": "6735", "note": "caf\u00e9"},
      "next_action": null,
      "on_behalf_of": null,
      "payment_method": "pm_1NG8Du2eZvKYlo2CYzzldNr7",
      "payment_method_options": {"acss_debit": {"currency": "cad", "mandate_options": {"interval_description": "First day of every month",
        "payment_schedule": "interval", "transaction_type": "personal"}, "verification_method": "automatic"}},
      "payment_method_types": ["acss_debit"],
      "single_use_mandate": null,
      "status": "requires_confirmation",
      "usage": "off_session"
    }
  },
  "livemode": false,
  "pending_webhooks": 0,
  "request": {"id": null, "idempotency_key": null},
  "type": "setup_intent.created"
}`
