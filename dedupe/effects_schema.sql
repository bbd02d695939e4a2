-- The calls to other systems: one row for each, written before the call and again when its outcome is known.
--
--   started  a call is in flight under a lease; unknown once the lease is over
--   unknown  it ended, and nobody knows whether it took effect
--   free     it is known not to have taken effect: the next caller calls
--   done     outcome is what every later caller gets
--   failed   last_error is what every later caller gets
--
-- This may be run again at any time. Where everything is there it only looks, for the reasons that stand in schema.sql.
do $schema$
begin
  if to_regclass('watermill_effects') is null then
    create table if not exists watermill_effects (
      consumer    text collate "C" not null, -- '' for dedupe.Do, unless it names one
      key         text collate "C" not null check (key <> ''),
      state       text collate "C" not null check (state in ('started', 'unknown', 'free', 'done', 'failed')),
      token       bigint not null,           -- the owner's: drawn anew by each
      attempts    integer not null,
      started_at  timestamptz not null,      -- of the last attempt
      lease_until timestamptz,               -- null: no lease
      updated_at  timestamptz not null default clock_timestamp(), -- of the last change of state
      fingerprint bytea,                     -- SHA-256 of the request
      outcome     json,
      last_error  text,
      check ((state = 'started') = (lease_until is not null)),
      primary key (consumer, key)
    );
    -- Another session may have made them since the look above.
    if not exists (
      select from pg_catalog.pg_index
      where indrelid = to_regclass('watermill_effects')
        and not indisprimary
    ) then
      -- what an operator asks for
      create index on watermill_effects (consumer, started_at) where state in ('started', 'unknown', 'free');
      -- finds old ones at next to no cost for new ones
      create index on watermill_effects using brin (updated_at);
    end if;
  end if;
end
$schema$;
