package tcpproxy

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Each line of a transcript is what one side sends at once: words are messages by their kind, and a few that have none.
const (
	startup = "> startup\n< R\n> p\n< R S K Z\n"
	trip3   = "> P B E S\n< 1 2 C Z\n"
)

func TestTrips(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		transcript string
		trips      int
	}{
		"a connection, its password":                      {startup, 2},
		"no password":                                     {"> startup\n< R S K Z\n", 1},
		"encryption refused":                              {"> ssl\n< no\n" + startup, 3},
		"encryption: turns are counted":                   {"> ssl\n< yes\n> ?\n< ?\n> ?\n< ? ?\n> ?\n> ?\n< ?\n", 4},
		"a simple query":                                  {startup + "> Q\n< T D C Z\n", 3},
		"an extended query":                               {startup + trip3, 3},
		"two queries":                                     {startup + trip3 + trip3, 4},
		"a pipeline with one sync":                        {startup + "> P B E P B E S\n< 1 2 C 1 2 C Z\n", 3},
		"a pipeline sent in parts":                        {startup + "> P B\n> E P B\n> E S\n< 1 2 C 1 2 C Z\n", 3},
		"a pipeline with a sync each":                     {startup + "> Q Q Q\n< C Z C Z C Z\n", 3},
		"a pipeline answered while it is being sent":      {startup + "> Q Q\n< C Z\n> Q\n< C Z\n> Q\n< C Z C Z\n", 3},
		"an early error, then the rest of the same query": {startup + "> P B\n< E\n> E S\n< Z\n", 3},
		"prepare, wait, run":                              {startup + "> P D S\n< 1 t T Z\n> B E S\n< 2 D C Z\n", 4},
		"prepare and flush, wait, run":                    {startup + "> P D H\n< 1 t T\n> B E S\n< 2 D C Z\n", 4},
		"a notification does not make it a client's turn": {startup + "> Q\n< A\n> Q\n< C Z C Z\n", 3},
		"copy: the query, then the data":                  {startup + "> Q\n< G\n> d d\n> d c\n< C Z\n", 4},
		"goodbye":                                         {startup + trip3 + "> X\n", 3},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.trips, play(test.transcript, func(n int) []int { return []int{n} }))
		})
	}
}

// However the network cuts a stream into pieces, the count is the same.
func TestTripsDoNotDependOnPieces(t *testing.T) {
	t.Parallel()
	exchanges := []string{
		trip3, "> Q\n< T D C Z\n", "> P B E P B E S\n< 1 2 C 1 2 C Z\n", "> Q Q\n< C Z\n> Q\n< C Z C Z\n", "> P D H\n< 1 t T\n> B E S\n< 2 D C Z\n",
		"> Q\n< G\n> d d\n> d c\n< C Z\n", "> P B\n< E\n> E S\n< Z\n",
	}
	rapid.Check(t, func(t *rapid.T) {
		transcript := startup + strings.Join(rapid.SliceOf(rapid.SampledFrom(exchanges)).Draw(t, "exchanges"), "")
		whole := play(transcript, func(n int) []int { return []int{n} })
		cut := play(transcript, func(n int) (sizes []int) {
			for n > 0 {
				size := rapid.IntRange(1, n).Draw(t, "size")
				sizes, n = append(sizes, size), n-size
			}
			return sizes
		})
		require.Equal(t, whole, cut)
	})
}

func play(transcript string, cut func(int) []int) (trips int) {
	var c tripCounter
	for line := range strings.Lines(transcript) {
		words := strings.Fields(line)
		direction := FromServer
		if words[0] == ">" {
			direction = ToServer
		}
		var data []byte
		for _, word := range words[1:] {
			data = append(data, message(word)...)
		}
		for _, size := range cut(len(data)) {
			if c.see(direction, data[:size]) {
				trips++
			}
			data = data[size:]
		}
	}
	return trips
}

func message(word string) []byte {
	switch word {
	case "startup":
		const user = "user\x00me\x00\x00"
		head := binary.BigEndian.AppendUint32(nil, uint32(8+len(user)))
		return append(binary.BigEndian.AppendUint32(head, 3<<16), user...)
	case "ssl":
		return binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, 80877103)
	case "yes":
		return []byte("S")
	case "no":
		return []byte("N")
	case "?":
		return []byte("encrypted")
	}
	// A body in which a careless reader would see messages.
	const body = "ZZZZSSSSQQQQ"
	return append(binary.BigEndian.AppendUint32([]byte(word), uint32(4+len(body))), body...)
}
