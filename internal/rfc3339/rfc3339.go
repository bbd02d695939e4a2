// Package rfc3339 reads times that other software has written.
package rfc3339

import "time"

// Micros reads date-time of RFC 3339, section 5.6, and nothing else: time.Parse takes a comma for the point too,
// an hour of one digit and an offset of 99 hours, and refuses small letters and leap seconds. What is finer than a
// microsecond is cut off; a leap second is the last microsecond before it.
func Micros(s string) (micros int64, ok bool) {
	const form = "0000-00-00T00:00:00"
	if len(s) <= len(form) {
		return 0, false
	}
	for i := range len(form) {
		switch form[i] {
		case '0':
			ok = digit(s[i])
		case 'T':
			ok = s[i] == 'T' || s[i] == 't'
		default:
			ok = s[i] == form[i]
		}
		if !ok {
			return 0, false
		}
	}
	year, month, day := number(s[0:4]), number(s[5:7]), number(s[8:10])
	hour, minute, second := number(s[11:13]), number(s[14:16]), number(s[17:19])
	if month < 1 || month > 12 || day < 1 || day > daysIn(year, month) || hour > 23 || minute > 59 || second > 60 {
		return 0, false
	}
	fraction, rest, ok := parseFraction(s[len(form):])
	if !ok {
		return 0, false
	}
	offset, ok := parseOffset(rest)
	if !ok {
		return 0, false
	}

	leap := second == 60
	if leap {
		second, fraction = 59, 999_999
	}
	seconds := time.Date(year, time.Month(month), day, hour, minute-offset, second, 0, time.UTC).Unix()
	if leap && (seconds+1)%(24*60*60) != 0 { // only the last second of a UTC day is ever lengthened
		return 0, false
	}
	return seconds*1_000_000 + fraction, true
}

// parseFraction reads the part of a second in microseconds and gives what follows it.
func parseFraction(s string) (micros int64, rest string, ok bool) {
	if s[0] != '.' {
		return 0, s, true
	}
	i, unit := 1, int64(100_000)
	for ; i < len(s) && digit(s[i]); i++ {
		micros += int64(s[i]-'0') * unit
		unit /= 10
	}
	return micros, s[i:], i > 1
}

// parseOffset reads the time zone, in minutes east of UTC.
func parseOffset(s string) (minutes int, ok bool) {
	if s == "Z" || s == "z" {
		return 0, true
	}
	if len(s) != len("+00:00") || s[0] != '+' && s[0] != '-' || s[3] != ':' ||
		!digit(s[1]) || !digit(s[2]) || !digit(s[4]) || !digit(s[5]) {
		return 0, false
	}
	hour, minute := number(s[1:3]), number(s[4:6])
	if hour > 23 || minute > 59 {
		return 0, false
	}
	minutes = hour*60 + minute
	if s[0] == '-' {
		minutes = -minutes
	}
	return minutes, true
}

func digit(c byte) bool { return c-'0' <= 9 }

func number(digits string) (n int) {
	for i := range len(digits) {
		n = n*10 + int(digits[i]-'0')
	}
	return n
}

func daysIn(year, month int) int {
	return time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
}
