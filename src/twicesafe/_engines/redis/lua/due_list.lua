-- due_list: most, overdue ('': of all functions), after (score), after (member), functions …
-- The entries of this index whose time has come → {now, member, score, …}. Entries of other functions only if
-- no completer has taken them for `overdue`. KEYS: index, functions
local STEP, STEPS = 500, 20 -- passes over this many entries of other functions
local most, overdue, from, last = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local asked, found, names = {}, {now}, nil
for at = 5, #ARGV do asked[ARGV[at]] = true end
for turn = 0, STEPS - 1 do
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], from, string.format('%.3f', us / 1000), 'WITHSCORES', 'LIMIT',
    turn * STEP, STEP)
  local ids = {}
  for at = 1, #page, 2 do ids[#ids + 1] = string.sub(page[at], 1, 32) end
  if overdue and #ids > 0 then names = redis.call('HMGET', KEYS[2], unpack(ids)) end
  for at = 1, #page, 2 do
    local member, score = page[at], page[at + 1]
    local past = score ~= from or member > last
    local mine = not overdue or asked[names[(at + 1) / 2] or ''] or tonumber(score) <= now - overdue
    if past and mine then
      found[#found + 1] = member
      found[#found + 1] = score
      if #found > 2 * most then return found end
    end
  end
  if #page < 2 * STEP then return found end
end
return found
