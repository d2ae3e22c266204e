-- start_run: the arguments of claim, then completes, function, arguments, max_attempts, id, by
-- → as claim, but {1, fence, attempt, cause, now, fields of the run} won · {9} too late
-- KEYS: record, run [, index, functions]
-- @include runs
-- @function claim
if late(ARGV[13]) then return LATE end
local run, most = KEYS[2], tonumber(ARGV[11])
local answer = claim()
if answer[1] ~= 1 then return answer end
local fence, attempt, cause = answer[2], answer[3], answer[4]
local fields = redis.call('HGETALL', run)
local kept, undoes, row = {}, false, nil
for at = 1, #fields, 2 do
  local name, text = fields[at], fields[at + 1]
  if string.sub(name, 1, 1) == 's' then
    local step = unpack_step(text)
    row = row or load(KEYS[1])
    -- Steps of an earlier record of this key are dropped; signals that came before the run are its own.
    local first = row.created == row.changed -- this claim created the record
    if first and step.fence > 0 and step.fence < fence and step.created < row.created then
      redis.call('HDEL', run, name)
    else
      undoes = undoes or step.undo
      if step.fence == 0 then
        step.fence, step.created = fence, math.max(step.created, row.created)
        text = pack_step(step)
        redis.call('HSET', run, name, text)
      end
      kept[#kept + 1] = name
      kept[#kept + 1] = text
    end
  end
end
if attempt > most and not undoes then -- its attempts are used up, and it has nothing to undo
  row = row or load(KEYS[1])
  row.state, row.attempt, row.changed = PARKED, row.attempt - 1, now
  if row.error == '' then row.error = NEVER_FINISHED end
  save(KEYS[1], row)
  announce(KEYS[1])
  return {3}
end
redis.call('HSET', run, 'c', ARGV[8], 'f', ARGV[9], 'a', ARGV[10])
redis.call('HDEL', run, 'k')
look_after(KEYS[3], KEYS[4], ARGV[12], tonumber(ARGV[2]), ARGV[9])
return {1, fence, attempt, cause, now, kept}
