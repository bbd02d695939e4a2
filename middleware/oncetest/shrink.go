package oncetest

import "slices"

// maxShrinks bounds the runs that are spent on a shorter sequence.
const maxShrinks = 100

// shrink looks for the shortest part of a sequence that still shows what f has found, by delta debugging: it takes out pieces, half of the
// sequence first, until no single element can go. try runs a part and gives what it found, or nil.
func shrink[T any](sequence []T, f *finding, try func(part []T) *finding) ([]T, *finding) {
	budget := maxShrinks
	for size := (len(sequence) + 1) / 2; size > 0; {
		shorter := false
		for from := 0; from < len(sequence) && budget > 0; {
			part := slices.Concat(sequence[:from], sequence[min(from+size, len(sequence)):])
			if len(part) > 0 {
				budget--
				if found := try(part); found != nil && found.kind == f.kind {
					sequence, f, shorter = part, found, true
					continue
				}
			}
			from += size
		}
		if !shorter || size > len(sequence) {
			size /= 2
		}
	}
	return sequence, f
}
