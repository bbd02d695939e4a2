// Package tcpproxy stands between a client and a server and does to their connections what networks do: it cuts them, holds data
// back, delays it, and refuses new ones. It also counts the round trips of PostgreSQL's protocol.
//
// A Proxy passes everything on until told otherwise.
package tcpproxy
