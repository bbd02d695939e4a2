// Package pgtest gives each test of the module a database of its own on a real PostgreSQL.
//
// The server is that of DATABASE_URL if it is set, and else one that the test process starts for itself, at the first use (from
// the binaries in PGBIN if that is set). A package that uses it has
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
package pgtest
