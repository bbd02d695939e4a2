// Package pgserver starts a real PostgreSQL for tests, examples and first steps: nothing to install, nothing to
// configure, nothing left behind.
//
//	server, err := pgserver.Start(ctx, pgserver.Config{})
//	if err != nil {
//		return err
//	}
//	defer server.Close()
//	pool, err := pgxpool.New(ctx, server.URL("postgres"))
//
// The server's binaries are those of the machine, or else are downloaded once by
// github.com/fergusstrange/embedded-postgres. It listens on a free port of 127.0.0.1, with a password drawn for it, and on a
// unix socket in a directory that only its account can enter. Its data lives in a temporary directory that goes with Close.
//
// PostgreSQL refuses to run as root; so when the program does, the server runs as postgres, or as nobody.
//
// A program that dies without Close leaves nothing running: on Linux the kernel stops the server at once; everywhere a small
// shell waits for the program's end, stops the server, and removes its directory.
//
// Stop, Abort, Kill and Restart are for tests of what a server's end does to its clients. Unless Config.Fsync is set, the
// server survives its own death, even by kill -9, but not that of the machine.
//
// Not for production, and not on Windows, where Start says so.
package pgserver
