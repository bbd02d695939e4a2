// Package child runs servers as child processes that need no root, even where the program is root, and that do not outlive the
// program, however it ends.
package child
