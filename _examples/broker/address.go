package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// An opener connects, once the whole address is known to be good.
type opener func(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error)

// schemes read an address, and leave what is wrong with it in its faults.
var schemes = map[string]func(*address) opener{
	"gochannel":  goChannel,
	"postgres":   postgres,
	"postgresql": postgres,
	"kafka":      kafka,
	"nats":       nats,
	"amqp":       amqp,
	"amqps":      amqp,
	"redis":      redis,
	"rediss":     redis,
}

// address is a broker's URL: scheme://user:password@host:port,host:port/path?options.
type address struct {
	text    string // secret
	scheme  string
	user    *url.Userinfo // nil: none
	hosts   []string      // as they stand
	path    string        // without the slash
	options url.Values
	secrets secrets

	known  []string
	faults []error
}

func parse(text string) (*address, opener, error) {
	a := &address{text: text}
	var rest string
	var found bool
	if a.scheme, rest, found = strings.Cut(text, "://"); !found {
		return nil, nil, errors.New("the address is not a URL: scheme://host") // without its text, which may hold a password
	}
	read := schemes[a.scheme]
	if read == nil {
		return nil, nil, fmt.Errorf("unknown scheme %.20q: use one of %s", a.scheme,
			strings.Join(slices.Sorted(maps.Keys(schemes)), ", "))
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	authority := rest[:end]
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		a.addSecret(authority[:i])
		authority = authority[i+1:]
	}
	if authority != "" {
		a.hosts = strings.Split(authority, ",")
	}
	if u, err := url.Parse(rest[end:]); err != nil {
		a.fault("what follows the host is not that of a URL")
	} else {
		a.path = strings.TrimPrefix(u.Path, "/")
		if a.options, err = url.ParseQuery(u.RawQuery); err != nil {
			a.fault("the options are not name=value&name=value")
		}
	}
	for name, values := range a.options {
		if strings.Contains(name, "password") {
			a.secrets.add(values...)
		}
	}
	open := read(a)
	for _, name := range slices.Sorted(maps.Keys(a.options)) {
		if !slices.Contains(a.known, name) {
			a.fault("unknown option %.40q: there are %s", name, cmp.Or(strings.Join(a.known, ", "), "none"))
		} else if len(a.options[name]) > 1 {
			a.fault("option %s is given more than once", name)
		}
	}
	if len(a.faults) > 0 {
		return nil, nil, a.secrets.redact(fmt.Errorf("%s: %w", a.scheme, errors.Join(a.faults...)))
	}
	return a, open, nil
}

// addSecret takes user:password.
func (a *address) addSecret(text string) {
	name, password, given := strings.Cut(text, ":")
	a.secrets.add(password)
	user, nameErr := url.PathUnescape(name)
	plain, passwordErr := url.PathUnescape(password)
	if nameErr != nil || passwordErr != nil {
		a.fault("user or password are not escaped as in a URL: @ is %%40, %% is %%25")
		return
	}
	a.secrets.add(plain)
	a.user = url.User(user)
	if given {
		a.user = url.UserPassword(user, plain)
	}
}

func (a *address) fault(format string, args ...any) {
	a.faults = append(a.faults, fmt.Errorf(format, args...))
}

// oneHost gives host:port of the only host.
func (a *address) oneHost(port string) string {
	hosts := a.hostPorts(port)
	if len(hosts) > 1 {
		a.fault("takes one host, not %d", len(hosts))
	}
	return strings.Join(hosts, ",")
}

// hostPorts gives the hosts, each with its port, or else the given one.
func (a *address) hostPorts(port string) (all []string) {
	if len(a.hosts) == 0 {
		a.fault("no host: use %s://host:%s", a.scheme, port)
	}
	for _, text := range a.hosts {
		host := text
		if !strings.Contains(host, ":") || strings.HasSuffix(host, "]") {
			host += ":" + port
		}
		name, number, err := net.SplitHostPort(host)
		if n, atoiErr := strconv.Atoi(number); err != nil || name == "" || atoiErr != nil || n < 1 || n > 65535 {
			a.fault("%.80q is not host or host:port", text)
		}
		all = append(all, host)
	}
	return all
}

// noPath is for brokers whose addresses have none.
func (a *address) noPath() {
	if a.path != "" {
		a.fault("takes no path after the host")
	}
}

func (a *address) noHost() {
	if len(a.hosts) > 0 || a.path != "" {
		a.fault("takes neither host nor path")
	}
}

func (a *address) option(name string) string {
	a.known = append(a.known, name)
	return a.options.Get(name)
}

func (a *address) number(name string, fallback, least, most int) int {
	text := a.option(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		a.fault("option %s is not a number from %d to %d", name, least, most)
	}
	return n
}

func (a *address) duration(name string, fallback, least time.Duration) time.Duration {
	text := a.option(name)
	if text == "" {
		return fallback
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < least {
		a.fault("option %s is not a duration of %v or more, such as 90s", name, least)
	}
	return d
}

func (a *address) boolean(name string) bool {
	switch a.option(name) {
	case "", "false":
		return false
	case "true":
		return true
	}
	a.fault("option %s is neither true nor false", name)
	return false
}

// password is that of the user, "" where there is none.
func (a *address) password() string {
	if a.user == nil {
		return ""
	}
	password, _ := a.user.Password()
	return password
}
