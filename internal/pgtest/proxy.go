package pgtest

import (
	"net"
	"net/url"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// Proxy puts a proxy in front of the server of address, for this test, and gives the URL of the same database through it. The
// connection is never encrypted, so that the proxy can count round trips.
func Proxy(t testing.TB, address string) (proxy *tcpproxy.Proxy, through string) {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	require.NoError(t, err)
	proxy, err = tcpproxy.Start(net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	return proxy, via(t, address, config, proxy.Addr())
}

// via is address with another host and port, where nothing is encrypted.
func via(t testing.TB, address string, config *pgx.ConnConfig, hostPort string) string {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	query := u.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	u.Host, u.User, u.RawQuery = hostPort, url.UserPassword(config.User, config.Password), query.Encode()
	return u.String()
}
