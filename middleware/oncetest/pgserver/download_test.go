//go:build unix

package pgserver

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDownload(t *testing.T) {
	repository, requests := startRepository(t, nil)
	var notices bytes.Buffer
	config := Config{Repository: repository, CacheDir: publicDir(t), Notices: &notices}
	config.setDefaults()
	binDir, err := download(t.Context(), config)
	require.NoError(t, err)
	require.Contains(t, notices.String(), "downloading "+string(downloadVersion)+" from "+repository)

	s := startServer(t, Config{BinDir: binDir, CacheDir: config.CacheDir})
	require.Equal(t, "1", query(t, s.URL("postgres"), "select 1"))

	before := requests.Load()
	notices.Reset()
	again, err := download(t.Context(), config)
	require.NoError(t, err)
	require.Equal(t, binDir, again)
	require.Equal(t, before, requests.Load(), "what has been downloaded is kept")
	require.Empty(t, notices.String())
	requireOnlyKept(t, config.CacheDir)
}

func TestDownloadFails(t *testing.T) {
	config := Config{CacheDir: publicDir(t), Notices: &bytes.Buffer{}}
	t.Run("nothing there", func(t *testing.T) {
		config := config
		config.Repository, _ = startRepository(t, func(http.ResponseWriter, *http.Request) bool { return false })
		_, err := download(t.Context(), config)
		require.ErrorContains(t, err, "no version found")
		require.ErrorContains(t, err, "BinDir", "what to do instead")
	})
	t.Run("another checksum", func(t *testing.T) {
		config := config
		config.Repository, _ = startRepository(t, func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, ".sha256") {
				return true
			}
			_, _ = w.Write([]byte(strings.Repeat("0", 64)))
			return false
		})
		_, err := download(t.Context(), config)
		require.ErrorContains(t, err, "checksums do not match")
	})
	requireOnlyKept(t, config.CacheDir)
}

func TestDownloadEndsWithItsContext(t *testing.T) {
	asked, goOn := make(chan struct{}), make(chan struct{})
	repository, _ := startRepository(t, func(http.ResponseWriter, *http.Request) bool {
		close(asked)
		<-goOn
		return false
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	config := Config{Repository: repository, CacheDir: publicDir(t), Notices: &bytes.Buffer{}}
	_, err := download(ctx, config)
	require.ErrorIs(t, err, context.Canceled)
	close(goOn)
	waitUntil(t, func() bool {
		entries, err := os.ReadDir(config.CacheDir)
		return err == nil && len(entries) == 0
	}, "what went on behind has cleaned up")
}

func requireOnlyKept(t *testing.T, cacheDir string) {
	t.Helper()
	entries, err := os.ReadDir(cacheDir)
	require.NoError(t, err)
	for _, entry := range entries {
		require.NotContains(t, entry.Name(), "download-")
	}
}

// startRepository serves, in place of Maven Central, a jar as it has them, with this machine's own server in it. Where first is
// false, it has answered itself, or the answer is 404.
func startRepository(t *testing.T, first func(http.ResponseWriter, *http.Request) bool) (url string, requests *atomic.Int32) {
	t.Helper()
	binDir, ok := installedBinDir(packaged)
	if !ok {
		t.Skip("there is no PostgreSQL on this machine to put into the repository")
	}
	t.Setenv("TMPDIR", publicDir(t)) // where the library leaves a log; so these tests are not parallel
	content := jar(t, binDir)
	sum := sha256.Sum256(content)
	requests = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		written := &headerWatch{ResponseWriter: w}
		if first != nil && !first(written, r) {
			if !written.wrote {
				http.NotFound(w, r)
			}
			return
		}
		path := strings.TrimPrefix(r.URL.Path, "/io/zonky/test/postgres/embedded-postgres-binaries-")
		switch {
		case path == r.URL.Path, !strings.Contains(path, string(downloadVersion)):
			http.NotFound(w, r)
		case strings.HasSuffix(path, ".jar"):
			_, _ = w.Write(content)
		case strings.HasSuffix(path, ".jar.sha256"):
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

type headerWatch struct {
	http.ResponseWriter
	wrote bool
}

func (h *headerWatch) Write(p []byte) (int, error) {
	h.wrote = true
	return h.ResponseWriter.Write(p)
}

// jar is a zip with a tar compressed by xz in it. Its programs hand over to those of binDir.
func jar(t *testing.T, binDir string) []byte {
	t.Helper()
	var tarball, archive bytes.Buffer
	tw := tar.NewWriter(&tarball)
	for _, name := range []string{"initdb", "postgres"} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s/%s \"$@\"\n", binDir, name)
		require.NoError(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/" + name, Mode: 0o755, Size: int64(len(script))}))
		_, err := tw.Write([]byte(script))
		require.NoError(t, err)
	}
	require.NoError(t, tw.Close())
	zw := zip.NewWriter(&archive)
	w, err := zw.Create("postgres-linux-x86_64.txz")
	require.NoError(t, err)
	_, err = w.Write(xz(tarball.Bytes()))
	require.NoError(t, err)
	require.NoError(t, zw.Close())
	return archive.Bytes()
}

// xz wraps up to 64 KiB in the format of https://tukaani.org/xz/xz-file-format.txt, uncompressed.
func xz(data []byte) []byte {
	checked := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }
	padded := func(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
	const crc32Check = 1
	flags := []byte{0, crc32Check}

	out := append([]byte("\xfd7zXZ\x00"), checked(flags)...)
	blockStart := len(out)
	out = append(out, checked([]byte{2, 0, 0x21, 1, 0, 0, 0, 0})...) // 12 bytes; one filter, LZMA2, with its smallest dictionary
	out = append(out, 1)                                             // a chunk that is not compressed
	out = binary.BigEndian.AppendUint16(out, uint16(len(data)-1))
	out = append(append(out, data...), 0)
	unpadded := len(out) - blockStart + crc32.Size
	out = append(out, make([]byte, -(len(out)-blockStart)&3)...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(data))

	index := binary.AppendUvarint(binary.AppendUvarint([]byte{0, 1}, uint64(unpadded)), uint64(len(data)))
	index = checked(padded(index))
	out = append(out, index...)
	footer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1)), flags...)
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(footer))
	return append(append(out, footer...), "YZ"...)
}
