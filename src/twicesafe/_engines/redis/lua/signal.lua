-- signal: name, result, retention, who, why, of its audit entry: retention; id, by
-- → {1: kept, 0: not [, 0: its run is due now]} · {9} too late
-- KEYS: record, run [, audit trail, if an operator sent it] [, index, functions]
-- @include runs
if late(ARGV[8]) then return LATE end
local who = ARGV[4]
local index = who ~= '' and 4 or 3
local run, name, keep = KEYS[2], ARGV[1], now + tonumber(ARGV[3])
local row = load(KEYS[1])
if row and expired(row) then row = nil end
if row and (row.state == COMPLETED or row.state == FAILED or row.state == FORGOTTEN) then return {0} end
local step = step_of(run, name)
if step and not row and step.fence > 0 then step = nil end -- of an earlier run, whose record is over
if step and (step.kind ~= WAIT or step.state == DONE) then return {0} end
redis.call('HSET', run, 's' .. name, pack_step({
  kind = WAIT, state = DONE, undo = false, fence = row and row.fence or 0, attempt = 1,
  position = step and step.position or 0, created = step and step.created or now, changed = now, due = 0,
  print = '', result = ARGV[2],
}))
if who ~= '' and row then write_audit(KEYS[3], now, 'signal', who, ARGV[5], row.state, tonumber(ARGV[6])) end
if redis.call('HSETNX', run, 'f', '') == 1 then
  redis.call('HSET', run, 'a', '', 'c', '0')
  look_after(KEYS[index], KEYS[index + 1], ARGV[7], tonumber(ARGV[3]))
end
if not row then
  redis.call('HSET', run, 'k', string.format('%.0f', keep)) -- for a run to come
elseif step and row.state == SUSPENDED then
  row.lease = math.min(row.lease, now)
  save(KEYS[1], row)
  look_after(KEYS[index], KEYS[index + 1], ARGV[7], 0)
  return {1, 0}
end
return {1}
