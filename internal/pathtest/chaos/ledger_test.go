package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := openLedger(dir, "producer-1")
	require.NoError(t, err)
	second, err := openLedger(dir, "state-2")
	require.NoError(t, err)
	first.note(producing, "id-1", "two\nlines")
	first.note(produced, "id-1", "")
	second.note(outcome, "id-1", "failed after all")
	second.note(outcome, "id-1", "fresh after 1ms")
	second.note(outcome, "id-2", "duplicate")
	first.note(sending, "id-3", "cause id-1")

	// A process was killed within a write, and started again.
	_, err = first.file.WriteString("19:00:00\tproducer-1[1]\tprod")
	require.NoError(t, err)
	require.NoError(t, first.file.Close())

	n, err := readNotes(dir)
	require.NoError(t, err)
	require.Equal(t, map[string]int{producing: 1, produced: 1, sending: 1, "failed": 1, "fresh": 1, "duplicate": 1}, n.counts)
	require.Contains(t, n.told[producer]["id-1"], "producer-1[")
	require.Contains(t, n.told["state"]["id-1"], "state-2[")
	require.NotContains(t, n.told["state"], "id-2")

	lines, err := histories(dir, "id-1", "")
	require.NoError(t, err)
	var acts []string
	for _, line := range lines {
		acts = append(acts, strings.Split(line, "\t")[2])
	}
	require.Equal(t, []string{producing, produced, outcome, outcome, sending}, acts)

	require.NoError(t, os.Mkdir(filepath.Join(dir, "no file"), 0o755))
	_, err = readNotes(dir)
	require.Error(t, err, "what cannot be read is no evidence")
}
