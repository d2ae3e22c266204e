-- adopt: over, state, cause, hold, attempt, fence, created, changed, lease, expires, owner, value, scope, error,
--   fingerprint [, result]
local over = ARGV[1]
local copy = {
  state = tonumber(ARGV[2]), cause = tonumber(ARGV[3]), hold = ARGV[4] == '1', attempt = tonumber(ARGV[5]),
  fence = tonumber(ARGV[6]), created = tonumber(ARGV[7]), changed = tonumber(ARGV[8]),
  lease = tonumber(ARGV[9]), expires = tonumber(ARGV[10]), owner = ARGV[11], value = ARGV[12],
  scope = ARGV[13], error = ARGV[14], fingerprint = ARGV[15] ~= '' and ARGV[15] or nil,
  result = ARGV[16],
}
-- Which state comes later at the same fence, by its number: `ORDER` of _core/lifecycle.py.
local ORDER = {[0] = 0, 3, 3, 1, 2, 2, 4, 1}
local old = load(KEYS[1])
if over ~= '' and not (old and old.fence == tonumber(over)) then return LOST end
if not old and expired(copy) then return OK end
if old then
  local later = copy.fence - old.fence
  if later == 0 then later = ORDER[copy.state] - ORDER[old.state] end
  if later < 0 then return LOST end
  local answered = (old.state == COMPLETED or old.state == FAILED) and not expired(old)
  if answered and ORDER[copy.state] < ORDER[COMPLETED] and copy.cause ~= BY_OPERATOR then return LOST end
  local renewed = copy.state == IN_PROGRESS and copy.lease > old.lease
  if later == 0 and not renewed then return OK end
end
if over ~= '' then copy.changed = now end
if expired(copy) then copy.expires = now end -- an expiry must not be in the past
save(KEYS[1], copy)
return OK
