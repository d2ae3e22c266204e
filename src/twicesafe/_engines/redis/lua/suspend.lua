-- suspend: owner, fence, delay, id, by, names of signals that it waits for …
-- → {1, OK, milliseconds until it is due} · {0, why not} · {9} too late. KEYS: record, run [, index, functions]
-- @include runs
if late(ARGV[5]) then return LATE end
local row, text = load(KEYS[1])
if not row then return {0, MISSING} end
if not owns(row, ARGV[1], tonumber(ARGV[2])) then return {0, LOST} end
if row.state == SUSPENDED then
  redis.call('SET', KEYS[1], text) -- its answer was lost
  return {1, OK, math.max(0, row.lease - now)}
end
if row.state ~= IN_PROGRESS then return {0, LOST} end
local delay = tonumber(ARGV[3])
for at = 6, #ARGV do
  local step = step_of(KEYS[2], ARGV[at])
  if step and step.state == DONE then delay = 0 end -- the signal came first
end
row.state, row.changed, row.attempt, row.cause = SUSPENDED, now, row.attempt - 1, BY_RESUMING
row.lease = now + delay
save(KEYS[1], row)
announce(KEYS[1])
look_after(KEYS[3], KEYS[4], ARGV[4], delay)
return {1, OK, delay}
