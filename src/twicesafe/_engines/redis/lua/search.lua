-- search: pattern, cursor, count, bytes before the id, records read at once, questions. One SCAN of this node, and an answer to each
-- question about the records in it: decided here, because sending a million records to be decided elsewhere takes minutes.
-- A question has the conditions of _engines/redis/key_search.py, and says what it wants to know:
--   'rows':   → {id, record without its result, id, …}     'count':  → matches
--   'survey': → {records in each of 16 states, stuck, oldest work in progress or -1}
--   'trails': → {id of a key on which an operator acted, …}
-- → {now, cursor, elsewhere, answer, …}
-- `elsewhere`: ids that this node listed but could not read, because their slot moves; the caller asks for them.
local before, together, questions = tonumber(ARGV[4]), tonumber(ARGV[5]), cmsgpack.unpack(ARGV[6])
local byte, sub, unpack_, floor, pcall_ = string.byte, string.sub, struct.unpack, math.floor, redis.pcall

-- To call a command takes longer than all else, so small records are read whole, many at a time. Large ones are read one
-- by one, and only as far as all questions need: the times are in the first 35 bytes, the value ends within the first 308.
local SMALL, ENOUGH = 1024, 319
local head, few = 34, {} -- few: the states that are looked for; nil: all
local answers, searches, survey, trails = {}, {}, nil, nil
for n, want in ipairs(questions) do
  answers[n] = want.what == 'count' and 0 or {}
  if want.what == 'trails' then
    trails = answers[n]
  elseif want.what == 'survey' then
    survey, few = answers[n], nil
    for state = 1, 16 do survey[state] = 0 end
    survey[17], survey[18] = 0, -1
  else
    searches[#searches + 1] = n
    if want.value and #want.value > 255 then want.value, want.states = nil, '' end -- no key is that long
    if want.value then want.marked = string.char(#want.value) .. want.value end
    if want.value or want.scope then head = ENOUGH end
    if want.digits then -- two for each byte; an odd one is half of the byte that follows
      local odd = #want.digits % 2
      want.first = string.gsub(sub(want.digits, 1, -1 - odd), '..', function(two) return string.char(tonumber(two, 16)) end)
      want.half = odd == 1 and tonumber(sub(want.digits, -1), 16)
    end
    if want.stuck then want.states = want.states and sub(want.states, 1, 1) or '1' end -- only work in progress can be
    if not want.states then few = nil end
    for state = 0, 15 do
      if few and byte(want.states, state + 1) == 49 then few[state] = true end
    end
  end
end

-- The first bytes of records that need a closer look; that may be to refuse an unknown layout.
local looked_at = {}
for first = 0, 255 do looked_at[first] = not few or first < 16 or first > 47 or few[first % 16] or false end

-- Times of a record, from its head: created, changed, end of the lease, end of retention; and where its value begins.
local function times(text, compact, state)
  if compact then
    local fence, after, span = unpack_('<I7I4I5', text, 4)
    local created = floor(fence / 1000)
    local changed = created + after
    if state == IN_PROGRESS then return created, changed, changed + span, 0, 36 end
    return created, changed, 0, changed + span, 36
  end
  local created, changed, at = unpack_('<I6I6', text, 12)
  local lease, expires = 0, 0
  if leased(state) then lease, at = unpack_('<I6', text, at) end
  if ends(state) then expires, at = unpack_('<I6', text, at) end
  return created, changed, lease, expires, at + 1 + (byte(text, at) or 0)
end

local function starts(text, prefix, at)
  return sub(text, at, at + #prefix - 1) == prefix
end

local function right_id(want, key)
  local last = before + #want.first
  return sub(key, before + 1, last) == want.first
    and (not want.half or floor(byte(key, last + 1) / 16) == want.half)
end

local function in_scope(want, key, text, flags, from)
  if bit.band(flags, SCOPE) == 0 then return false end
  if #text < from + #want.scope - 1 then text = redis.call('GET', key) end
  return text and starts(text, want.scope, from)
end

local function with_error(want, key, flags)
  local row = flags >= ERROR and load(key)
  return row and starts(row.error, want.error, 1)
end

-- Whether it meets all conditions. `at`: where the length of its value is.
local function matches(want, key, text, state, flags, created, changed, lease, at)
  if want.states and byte(want.states, state + 1) ~= 49 then return false end
  if want.older and created > want.older then return false end
  if want.after and changed < want.after or want.before and changed >= want.before then return false end
  if want.stuck and lease > now or want.cause and flags % 8 ~= want.cause then return false end
  return (not want.first or right_id(want, key))
    and (not want.value or starts(text, want.marked, at))
    and (not want.scope or in_scope(want, key, text, flags, at + byte(text, at) + 3))
    and (not want.error or with_error(want, key, flags))
end

local function take(n, key)
  if questions[n].what == 'count' then
    answers[n] = answers[n] + 1
    return
  end
  local row, text = load(key)
  if row then
    local found = answers[n]
    found[#found + 1] = sub(key, before + 1, before + 32)
    found[#found + 1] = sub(text, 1, row.size)
  end
end

-- If there is one question, most records do not match: the shortest way to see that.
local only = not survey and #searches == 1 and questions[searches[1]] or {}
local cause, failed, newer, marked, scope = only.cause, only.error, only.newer, only.marked, only.scope
local to_value = marked and 35 + #marked

-- By state: a compact record with a fence below this is only counted, because each search looks for others.
local below = {}
for state = 0, survey and 15 or -1 do
  below[state] = math.huge
  for i = 1, #searches do
    local want = questions[searches[i]]
    if not want.states or byte(want.states, state + 1) == 49 then
      below[state] = math.min(below[state], (want.newer or 0) * 1000)
    end
  end
end

local function examine(key, text, first, flags)
  local compact = first >= 32
  local state = first - (compact and 32 or 16)
  if first < 16 or first > 47 then error({err = 'VERSION the record has layout ' .. floor(first / 16)}) end
  if survey and compact and state > IN_PROGRESS then
    local fence, after, span = unpack_('<I7I4I5', text, 4)
    if fence < below[state] then -- nearly all records
      if fence / 1000 + after + span >= now + 1 then survey[state + 1] = survey[state + 1] + 1 end
      return
    end
  end
  if cause and flags % 8 ~= cause or failed and flags < ERROR then return end
  if compact then
    if marked and sub(text, 36, to_value) ~= marked then return end
    if scope and not in_scope(only, key, text, flags, 39 + byte(text, 36)) then return end
    if newer and unpack_('<I7', text, 4) < newer * 1000 then return end
  end
  local created, changed, lease, expires, at = times(text, compact, state)
  if expires > 0 and expires <= now then return end
  if survey then
    survey[state + 1] = survey[state + 1] + 1
    if state == IN_PROGRESS then
      if lease <= now then survey[17] = survey[17] + 1 end
      if survey[18] < 0 or changed < survey[18] then survey[18] = changed end
    end
  end
  for i = 1, #searches do
    local n = searches[i]
    local want = questions[n]
    if not (want.newer and created < want.newer) -- of the newest rows, nearly all are seen to be too old here
      and matches(want, key, text, state, flags, created, changed, lease, at) then
      take(n, key)
    end
  end
end

-- The pattern ends with its star: comparing the end of each key there takes as long as the rest of the SCAN.
-- Of all keys that begin so, only records have this length. They are moved to the front of the list.
local page = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[1], 'COUNT', ARGV[3])
local keys, last, elsewhere, length = page[2], 0, {}, before + 33
for at = 1, #keys do
  local key = keys[at]
  if #key == length then
    last = last + 1
    if last < at then keys[last] = key end
  elseif trails and #key == length + 1 and sub(key, -2) == '}a' then
    trails[#trails + 1] = sub(key, before + 1, before + 32)
  end
end
if not survey and #searches == 0 then last = 0 end

local function read_alone(key)
  local text = pcall_('GETRANGE', key, '0', head)
  if type(text) == 'table' then
    elsewhere[#elsewhere + 1] = sub(key, before + 1, before + 32)
    return
  end
  local first, flags = byte(text, 1, 2)
  if looked_at[first] then examine(key, text, first, flags) end
end

-- Whether more can be read in this way: not if they are large, or if this user may not.
local function read_together(from, to)
  local texts = pcall_('MGET', unpack(keys, from, to))
  if texts.err then return false end
  local size = 0
  for i = 1, #texts do
    local text = texts[i]
    if text then
      size = size + #text
      local first, flags = byte(text, 1, 2)
      if looked_at[first] then examine(keys[from + i - 1], text, first, flags) end
    end
  end
  return size <= SMALL * together, true
end

local at, more, done = 1, together > 1, false
while more and at <= last do
  local to = math.min(at + together - 1, last)
  more, done = read_together(at, to)
  if done then at = to + 1 end
end
for n = at, last do read_alone(keys[n]) end
return {now, page[1], elsewhere, unpack(answers)}
