package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuickstart(t *testing.T) {
	out, err := exec.Command("go", "run", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "received receipt-of-event-1\n")
	require.Contains(t, string(out), "received receipt-of-event-2\n")
	require.True(t, strings.HasSuffix(string(out), "4 deliveries of 2 events, 2 payments\n"), string(out))
}

// The program in the README is this one.
func TestReadmeShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```go\n"+string(program)+"```\n")
}
