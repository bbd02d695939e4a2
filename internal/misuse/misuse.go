// Package misuse marks what is the program's own fault where only the handling of a message shows it.
package misuse

import "errors"

// Err is wrapped by the errors of functions that were made from nonsense, such as a path with an empty name in it. They fail
// for every message and none is to blame: it must not go to a poison queue.
var Err = errors.New("made from invalid arguments")
