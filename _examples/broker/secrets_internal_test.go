package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
)

func TestSecretsAreClean(t *testing.T) {
	t.Parallel()
	var s secrets
	s.add("p@ss word/+%")
	cause := fmt.Errorf("dial %s: %w", "amqp://user:"+url.QueryEscape("p@ss word/+%")+"@host", io.ErrUnexpectedEOF)
	err := s.redact(fmt.Errorf("connect as p@ss word/+%%: %w", cause))
	require.EqualError(t, err, "connect as xxxxx: dial amqp://user:xxxxx@host: unexpected EOF")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotContains(t, fmt.Sprintf("%+v %v", err, errors.Unwrap(err)), "p@ss")

	var log bytes.Buffer
	logger := s.logger(watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&log, nil))))
	logger = logger.With(watermill.LogFields{"url": "amqp://:" + url.PathEscape("p@ss word/+%") + "@host"})
	logger.Error("with p@ss word/+%", cause, watermill.LogFields{"n": 1, "err": cause, "url2": []string{"p@ss word/+%"}})
	require.NotContains(t, log.String(), "ss word")
	require.NotContains(t, log.String(), url.QueryEscape("p@ss word/+%"))
	require.Contains(t, log.String(), "xxxxx")
}
