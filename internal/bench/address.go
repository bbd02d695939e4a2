package main

import "net/url"

// through is address by way of a proxy.
func through(address, proxy string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	u.Host = proxy
	return u.String(), nil
}
