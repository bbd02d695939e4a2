package pgserver

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// setPassword draws a password and stores what SCRAM checks it against. PostgreSQL itself would iterate the hash 4,096 times, which
// every client then pays for at every connection; that makes guessing slow, and a random password of 128 bits does not need it.
func (s *Server) setPassword(ctx context.Context) error {
	password, salt := rand.Text(), make([]byte, 16)
	_, _ = rand.Read(salt)
	if err := s.exec(ctx, "alter role "+superuser+" password '"+scramVerifier(password, salt)+"'"); err != nil {
		return fmt.Errorf("set the password: %w", err)
	}
	s.password = password
	return nil
}

// scramVerifier is what RFC 5803 stores for SCRAM-SHA-256, in PostgreSQL's spelling, with the smallest iteration count that lib/pq
// takes (it wants four digits).
func scramVerifier(password string, salt []byte) string {
	const iterations = 1000
	salted, _ := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	stored := sha256.Sum256(mac(salted, []byte("Client Key")))
	server := mac(salted, []byte("Server Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(stored[:]), encode(server))
}

func mac(key, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(text)
	return h.Sum(nil)
}
