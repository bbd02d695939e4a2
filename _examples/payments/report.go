package main

import (
	"fmt"
	"text/tabwriter"
)

// report prints how many orders of each status have how many charges in the provider's ledger.
func (t *trial) report(facts []fact) {
	charges := map[string]*[3]int{"paid": {}, "declined": {}, "unknown": {}, "placed": {}}
	for _, f := range facts {
		if row := charges[f.status]; row != nil {
			row[min(f.charges, 2)]++
		}
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "orders\tno charge\tone charge\tmore\t")
	for _, status := range []string{"paid", "declined", "unknown", "placed"} {
		if row := charges[status]; *row != [3]int{} {
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t\n", status, row[0], row[1], row[2])
		}
	}
	_ = table.Flush()
}
