package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var signedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestSignatureIsTheOneOfTheDescription(t *testing.T) {
	t.Parallel()
	// printf '1767323045.{"id":"evt_1"}' | openssl dgst -sha256 -hmac secret
	const header = "t=1767323045,v1=406b1ba50f42cff3665718c90df7f73fa268963389f73ac6fb6858a4a23fc17d"
	require.Equal(t, header, sign([]byte(`{"id":"evt_1"}`), signedAt, []byte("secret")))
}

func TestVerify(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1"}`)
	older, newer, other := []byte("older"), []byte("newer"), []byte("other")
	header := sign(body, signedAt, newer)
	for name, test := range map[string]struct {
		header  string
		body    []byte
		secrets [][]byte
		late    time.Duration
		valid   bool
	}{
		"the secret":                         {header: header, secrets: [][]byte{newer}, valid: true},
		"the receiver has the new one too":   {header: sign(body, signedAt, older), secrets: [][]byte{newer, older}, valid: true},
		"the sender signs with both":         {header: sign(body, signedAt, other, newer), secrets: [][]byte{newer}, valid: true},
		"spaces after the commas":            {header: strings.ReplaceAll(header, ",", ", "), secrets: [][]byte{newer}, valid: true},
		"other versions beside it":           {header: header + ",v0=00", secrets: [][]byte{newer}, valid: true},
		"five minutes late":                  {header: header, secrets: [][]byte{newer}, late: tolerance, valid: true},
		"five minutes early":                 {header: header, secrets: [][]byte{newer}, late: -tolerance, valid: true},
		"too late":                           {header: header, secrets: [][]byte{newer}, late: tolerance + time.Second},
		"too early":                          {header: header, secrets: [][]byte{newer}, late: -tolerance - time.Second},
		"another secret":                     {header: header, secrets: [][]byte{other}},
		"no secret":                          {header: header},
		"another body":                       {header: header, body: []byte(`{"id":"evt_2"}`), secrets: [][]byte{newer}},
		"a later time":                       {header: strings.Replace(header, "t=1767323045", "t=1767323046", 1), secrets: [][]byte{newer}},
		"a digit of the time before the dot": {header: strings.Replace(header, "t=1767323045", "t=176732304", 1), body: append([]byte("5"), body...), secrets: [][]byte{newer}},
		"two times":                          {header: header + ",t=1767323045", secrets: [][]byte{newer}},
		"no time":                            {header: header[strings.Index(header, ",")+1:], secrets: [][]byte{newer}},
		"a time that is no number":           {header: strings.Replace(header, "t=", "t=x", 1), secrets: [][]byte{newer}},
		"a time out of range":                {header: strings.Replace(header, "t=", "t=99999999999999999999", 1), secrets: [][]byte{newer}},
		"a time far away":                    {header: sign(body, time.Unix(1<<62, 0), newer), secrets: [][]byte{newer}},
		"no signature":                       {header: "t=1767323045", secrets: [][]byte{newer}},
		"an empty signature":                 {header: "t=1767323045,v1=", secrets: [][]byte{newer}},
		"half a signature":                   {header: header[:len(header)-2], secrets: [][]byte{newer}},
		"a signature that is no hexadecimal": {header: header[:len(header)-1] + "x", secrets: [][]byte{newer}},
		"an older version only":              {header: strings.Replace(header, "v1=", "v0=", 1), secrets: [][]byte{newer}},
		"nothing":                            {secrets: [][]byte{newer}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.body == nil {
				test.body = body
			}
			err := verify(test.header, test.body, signedAt.Add(test.late), test.secrets...)
			if test.valid {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, errSignature)
		})
	}
}
