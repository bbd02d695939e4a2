//go:build !unix

package pgserver

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStartSaysWhereItCannot(t *testing.T) {
	_, err := Start(t.Context(), Config{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
