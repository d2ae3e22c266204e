-- rewrite_run: step (empty: the arguments), before, after
-- KEYS: record, run
-- @include runs
local row = load(KEYS[1])
if not row then return MISSING end
local name, before, after = ARGV[1], ARGV[2], ARGV[3]
local step = name ~= '' and step_of(KEYS[2], name) or nil
local known
if name == '' then known = redis.call('HGET', KEYS[2], 'a') else known = step and step.result end
if not known then return MISSING end
if row.state == IN_PROGRESS then return REFUSED end
if known == after then return OK end -- only the answer was lost
if known ~= before then return LOST end
if step then
  step.result = after
  redis.call('HSET', KEYS[2], 's' .. name, pack_step(step))
else
  redis.call('HSET', KEYS[2], 'a', after)
end
return OK
