package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// signatureHeader carries "t=<Unix time>,v1=<signature>", with several v1 while the provider changes its secret.
const signatureHeader = "Webhook-Signature"

// tolerance is how far the time of a signature may be off, either way. It keeps whoever has recorded a delivery from sending it
// for ever; within it, the event's id makes the second copy a duplicate.
const tolerance = 5 * time.Minute

var errSignature = errors.New("invalid signature")

// verify tells whether a body was signed with one of the secrets at about now. Its errors are for the log: the sender learns no
// more than that the signature is invalid.
func verify(header string, body []byte, now time.Time, secrets ...[]byte) error {
	var (
		seconds    string
		signatures [][]byte
	)
	for field := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "t":
			if seconds != "" {
				return fmt.Errorf("%w: two times", errSignature)
			}
			seconds = value
		case "v1":
			signature, err := hex.DecodeString(value)
			if err != nil {
				return fmt.Errorf("%w: not hexadecimal", errSignature)
			}
			signatures = append(signatures, signature)
		}
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: no time", errSignature)
	}
	if age := now.Sub(time.Unix(unix, 0)); age < -tolerance || age > tolerance {
		return fmt.Errorf("%w: signed %v ago", errSignature, age.Round(time.Second))
	}
	for _, secret := range secrets {
		expected := signature(seconds, body, secret)
		for _, signature := range signatures {
			if hmac.Equal(signature, expected) { // takes the same time wherever they differ
				return nil
			}
		}
	}
	return fmt.Errorf("%w: of no known secret", errSignature)
}

// sign makes the header, with a signature for each secret.
func sign(body []byte, at time.Time, secrets ...[]byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	header := "t=" + seconds
	for _, secret := range secrets {
		header += ",v1=" + hex.EncodeToString(signature(seconds, body, secret))
	}
	return header
}

// signature is the HMAC-SHA256 over the time and the body. The dot between them keeps a digit from wandering from one into the
// other.
func signature(seconds string, body, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(seconds))
	mac.Write([]byte("."))
	mac.Write(body)
	return mac.Sum(nil)
}
