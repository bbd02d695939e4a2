package main

import "time"

// forger makes the signature and the body of a delivery that must be refused.
type forger func(body []byte, now time.Time, secret []byte) (header string, forged []byte)

var forgers = []forger{
	// signed with another secret
	func(body []byte, now time.Time, _ []byte) (string, []byte) {
		return sign(body, now, []byte("guessed")), body
	},
	// changed on the way
	func(body []byte, now time.Time, secret []byte) (string, []byte) {
		return sign(body, now, secret), append([]byte(" "), body...)
	},
	// recorded a while ago, and sent again
	func(body []byte, now time.Time, secret []byte) (string, []byte) {
		return sign(body, now.Add(-2*tolerance), secret), body
	},
	// not signed
	func(body []byte, _ time.Time, _ []byte) (string, []byte) {
		return "", body
	},
}
