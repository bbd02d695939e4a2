package broker_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	library  = "github.com/watermill-once/watermill-once"
	examples = library + "/_examples"
)

// Each example, copied out together with this folder into a module of the user's, builds there, its tests too. The user changes
// the imports of the folder, as is done here.
func TestExamplesCanBeCopied(t *testing.T) {
	t.Parallel()
	checkout, err := filepath.Abs("../..")
	require.NoError(t, err)
	folders, err := os.ReadDir("..")
	require.NoError(t, err)
	for _, folder := range folders {
		if name := folder.Name(); folder.IsDir() && name != "testdata" {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				module := t.TempDir()
				copyFolder(t, filepath.Join("..", name), filepath.Join(module, name))
				if name != "broker" {
					copyFolder(t, ".", filepath.Join(module, "broker"))
				}
				command(t, module, "go", "mod", "init", "shop")
				command(t, module, "go", append([]string{"mod", "edit", "-replace=" + library + "=" + checkout}, versions(t)...)...)
				sums, err := os.ReadFile("../go.sum")
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(module, "go.sum"), sums, 0o600))
				command(t, module, "go", "mod", "tidy")
				command(t, module, "go", "build", "-o", os.DevNull, "./...")
				command(t, module, "go", "vet", "./...")
			})
		}
	}
}

// versions are those that the examples are tested with: what is newest would have to be asked for.
func versions(t *testing.T) (flags []string) {
	t.Helper()
	var mod struct {
		Require []struct{ Path, Version string }
	}
	require.NoError(t, json.Unmarshal([]byte(command(t, "..", "go", "mod", "edit", "-json")), &mod))
	for _, module := range mod.Require {
		flags = append(flags, "-require="+module.Path+"@"+module.Version)
	}
	return flags
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".go") {
			text = []byte(strings.ReplaceAll(string(text), `"`+examples+"/", `"shop/`))
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		return os.WriteFile(target, text, 0o600)
	}))
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var faults bytes.Buffer
	cmd.Stderr = &faults
	out, err := cmd.Output()
	require.NoError(t, err, "%s %v\n%s%s", name, args, out, &faults)
	return string(out)
}
