-- due_move: groups of member, the score that was read, next score ('': remove), function
-- → 1 or 0 for each: of two completers that look at once, one moves the entry. KEYS: index, functions
local moved = {}
for at = 1, #ARGV, 4 do
  local member, next_score, name = ARGV[at], ARGV[at + 2], ARGV[at + 3]
  local id = string.sub(member, 1, 32)
  if redis.call('ZSCORE', KEYS[1], member) ~= ARGV[at + 1] then
    moved[#moved + 1] = 0
  else
    moved[#moved + 1] = 1
    if next_score == '' or #member > 32 then redis.call('ZREM', KEYS[1], member) end
    if next_score ~= '' then
      if #member > 32 then
        redis.call('ZADD', KEYS[1], 'LT', next_score, id) -- a mark: the entry itself may be due earlier
      else
        redis.call('ZADD', KEYS[1], next_score, id)
      end
      if name ~= '' then redis.call('HSET', KEYS[2], id, name) end
    elseif not redis.call('ZSCORE', KEYS[1], id) and not redis.call('ZSCORE', KEYS[1], id .. '?') then
      redis.call('HDEL', KEYS[2], id)
    end
  end
end
return moved
