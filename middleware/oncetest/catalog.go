package oncetest

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// table is one that is compared, or an outbox.
type table struct {
	schema, name string
	columns      []column
	outbox       bool
}

type column struct {
	name     string
	number   int16
	binary   bool // bytea
	key      bool // in the primary key
	volatile bool // other in every run
}

func (t *table) String() string {
	if t.schema == "public" {
		return t.name
	}
	return t.schema + "." + t.name
}

// called tells whether a name from the config is the table's.
func (t *table) called(name string) bool {
	return name == t.name || name == t.schema+"."+t.name
}

func (t *table) column(number int16) *column {
	for i := range t.columns {
		if t.columns[i].number == number {
			return &t.columns[i]
		}
	}
	return nil
}

func (t *table) has(names ...string) bool {
	for _, name := range names {
		if !slices.ContainsFunc(t.columns, func(c column) bool { return c.name == name }) {
			return false
		}
	}
	return true
}

// Of all tables that are the user's, not an extension's, the columns, and which of them a run fills by chance or from the clock: an
// identity, or a default that calls what is not immutable. The functions are in the default's tree by their numbers (funcid, and
// opfuncid for an operator's); current_timestamp and its like are nodes of their own.
const columnsQuery = `
select
  t.oid, n.nspname, t.relname, c.attname, c.attnum, c.atttypid = 'bytea'::regtype,
  coalesce(c.attnum = any (k.indkey), false),
  c.attidentity <> '' or coalesce(
    d.adbin::text ~ '\{SQLVALUEFUNCTION '
    or pg_get_expr(d.adbin, d.adrelid) ~* '''(now|today|tomorrow|yesterday)'''
    or exists (
      select
      from regexp_matches(d.adbin::text, 'funcid (\d+)', 'g') as called (id)
      join pg_proc f on f.oid = called.id[1]::oid and f.provolatile <> 'i'
    ),
    false)
from pg_class t
join pg_namespace n on n.oid = t.relnamespace
join pg_attribute c on c.attrelid = t.oid and c.attnum > 0 and not c.attisdropped
left join pg_index k on k.indrelid = t.oid and k.indisprimary
left join pg_attrdef d on d.adrelid = t.oid and d.adnum = c.attnum
where t.relkind = 'r'
  and n.nspname not in ('pg_catalog', 'information_schema')
  and n.nspname !~ '^pg_(toast|temp)'
  and not exists (select from pg_depend e where e.classid = 'pg_class'::regclass and e.objid = t.oid and e.deptype = 'e')
order by n.nspname, t.relname, c.attnum`

// What is other in every run makes what refers to it, or is computed from it, other too.
const followersQuery = `
select f.conrelid, a.number, f.confrelid, a.of
from pg_constraint f, unnest(f.conkey, f.confkey) as a (number, of)
where f.contype = 'f'
union all
select d.adrelid, d.adnum, o.refobjid, o.refobjsubid::int2
from pg_attrdef d
join pg_depend o on o.classid = 'pg_attrdef'::regclass and o.objid = d.oid and o.refclassid = 'pg_class'::regclass
where o.refobjsubid > 0 and (o.refobjid, o.refobjsubid) <> (d.adrelid, d.adnum)`

type follower struct {
	table    uint32
	number   int16
	of       uint32
	ofNumber int16
}

// catalog lists what is to be looked at.
func (r *run) catalog() []*table {
	r.t.Helper()
	var (
		batch     pgx.Batch
		byID      = map[uint32]*table{}
		tables    []*table
		followers []follower
	)
	batch.Queue(columnsQuery)
	batch.Queue(followersQuery)
	results := r.observe.SendBatch(r.t.Context(), &batch)
	rows, err := results.Query()
	check(r.t, err)
	var (
		id           uint32
		schema, name string
		c            column
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &schema, &name, &c.name, &c.number, &c.binary, &c.key, &c.volatile}, func() error {
		t := byID[id]
		if t == nil {
			t = &table{schema: schema, name: name}
			byID[id] = t
			tables = append(tables, t)
		}
		t.columns = append(t.columns, c)
		return nil
	})
	check(r.t, err)
	rows, err = results.Query()
	check(r.t, err)
	var f follower
	_, err = pgx.ForEachRow(rows, []any{&f.table, &f.number, &f.of, &f.ofNumber}, func() error {
		followers = append(followers, f)
		return nil
	})
	check(r.t, err)
	check(r.t, results.Close())

	r.ignore(tables)
	follow(byID, followers)
	return slices.DeleteFunc(tables, r.leftOut)
}

func follow(tables map[uint32]*table, followers []follower) {
	for changed := true; changed; {
		changed = false
		for _, f := range followers {
			from, to := tables[f.of], tables[f.table]
			if from == nil || to == nil {
				continue
			}
			source, c := from.column(f.ofNumber), to.column(f.number)
			if source != nil && c != nil && source.volatile && !c.volatile {
				c.volatile, changed = true, true
			}
		}
	}
}

// ignore marks the columns that are named for it. A name that fits nothing would go unnoticed for ever.
func (r *run) ignore(tables []*table) {
	r.t.Helper()
	for _, name := range r.proof.config.IgnoreColumns {
		dot := strings.LastIndexByte(name, '.')
		found := false
		for _, t := range tables {
			for i := range t.columns {
				if dot > 0 && t.called(name[:dot]) && t.columns[i].name == name[dot+1:] {
					t.columns[i].volatile, found = true, true
				}
			}
		}
		if !found {
			r.t.Fatalf("oncetest: IgnoreColumns: there is no column %s", name)
		}
	}
	for _, name := range r.proof.config.IgnoreTables {
		if !slices.ContainsFunc(tables, func(t *table) bool { return t.called(name) }) {
			r.t.Fatalf("oncetest: IgnoreTables: there is no table %s", name)
		}
	}
}

// leftOut leaves out what is Watermill's or ours, but for outboxes, and what is named for it.
func (r *run) leftOut(t *table) bool {
	if slices.ContainsFunc(r.proof.config.IgnoreTables, t.called) || slices.ContainsFunc(r.proof.emptied, t.called) {
		return true
	}
	if !strings.HasPrefix(t.name, "watermill_") {
		return false
	}
	t.outbox = t.has("offset", "uuid", "payload", "metadata")
	return !t.outbox
}
