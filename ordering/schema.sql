-- The entities: one row for each that a consumer has applied events to, with the position of the last one.
--
-- This may be run again at any time. Where everything is there it only looks, and waits for nobody.
do $schema$
begin
  if to_regclass('watermill_entity_versions') is null then
    create table if not exists watermill_entity_versions (
      consumer   text collate "C" not null,
      entity     text collate "C" not null check (entity <> ''),
      version    bigint not null,
      tie_break  text collate "C" not null default '',
      event_id   text collate "C", -- '': the event had none; null: the event is to run again
      updated_at timestamptz not null default now(),
      primary key (consumer, entity)
    )
    -- room on each page for the rows' next versions, which then need no new index entries
    with (fillfactor = 90);
  end if;
end
$schema$;
