-- The claims: one row for each event that a consumer has handled.
--
-- This may be run again at any time. Where everything is there it only looks, and that is why it asks by itself: "create
-- table if not exists" wants the right to create, and "create index if not exists" waits for every open transaction
-- that has written, and holds up new ones meanwhile.
do $schema$
begin
  if to_regclass('watermill_processed_events') is null then
    create table if not exists watermill_processed_events (
      consumer     text collate "C" not null,
      event_id     text collate "C" not null check (event_id <> ''),
      processed_at timestamptz not null default now(),
      digest       bytea,
      primary key (consumer, event_id)
    );
    -- Another session may have made both since the look above.
    if not exists (
      select from pg_catalog.pg_index
      where indrelid = to_regclass('watermill_processed_events')
        and not indisprimary
    ) then
      -- finds old claims at next to no cost for new ones
      create index on watermill_processed_events using brin (processed_at);
    end if;
  end if;

  if not exists (
    select from pg_catalog.pg_attribute
    where attrelid = to_regclass('watermill_processed_events')
      and attname = 'digest'
  ) then
    alter table watermill_processed_events add column digest bytea;
  end if;
end
$schema$;
