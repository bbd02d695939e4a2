package main

import (
	"errors"
	"fmt"

	"github.com/watermill-once/watermill-once/dedupe"
)

// fact is what became of an order.
type fact struct {
	order    string
	status   string // as the shop believes
	charges  int    // in the provider's ledger
	mails    int    // receipts that were sent
	poor     bool   // its card is declined
	doubtful bool   // the provider has charged or not, and let nobody know
}

// check tells what must not be, at the end of a pass.
func check(facts []fact, onUnknown dedupe.OnUnknown) error {
	var faults []error
	for _, f := range facts {
		if onUnknown != dedupe.Refuse {
			faults = append(faults, f.checkResolved())
			continue
		}
		switch {
		case f.doubtful && f.status != "unknown":
			faults = append(faults, f.fault("nobody can know what became of its charge"))
		case f.status == "unknown" && f.charges > 1:
			faults = append(faults, f.fault("charged twice"))
		case f.status == "unknown" && f.mails > 0:
			faults = append(faults, f.fault("has a receipt"))
		case f.status != "unknown":
			faults = append(faults, f.checkResolved())
		}
	}
	return errors.Join(faults...)
}

// checkResolved tells what must not be once an operator has resolved what was unknown.
func checkResolved(facts []fact) error {
	var faults []error
	for _, f := range facts {
		faults = append(faults, f.checkResolved())
	}
	return errors.Join(faults...)
}

// checkJournal compares the orders that are unknown with what the journal reports.
func checkJournal(facts []fact, reported int) error {
	unknown := 0
	for _, f := range facts {
		if f.status == "unknown" {
			unknown++
		}
	}
	if unknown != reported {
		return fmt.Errorf("%d orders are unknown, and the journal has %d unknown calls", unknown, reported)
	}
	return nil
}

func (f fact) checkResolved() error {
	due := 1
	if f.poor {
		due = 0
	}
	switch {
	case f.charges > 1:
		return f.fault("charged twice")
	case f.poor && f.status != "declined", !f.poor && f.status != "paid", f.charges != due:
		return f.fault("it is to be paid by one charge, or declined without one")
	case f.mails != due:
		return f.fault("each payment has one receipt")
	}
	return nil
}

func (f fact) fault(why string) error {
	return fmt.Errorf("%s, status %q, charges %d, receipts %d, card without money %t: %s", f.order, f.status, f.charges, f.mails, f.poor, why)
}
