-- search: pattern, cursor, count, bytes before the id, what, conditions, first bytes of the id. One SCAN of this node, and the records in
-- it that match: decided here, because sending a million records to be decided elsewhere takes minutes.
-- what = 'rows':   → {now, cursor, elsewhere, id, record without its result, id, …}
-- what = 'count':  → {now, cursor, elsewhere, matches}
-- what = 'survey': → {now, cursor, elsewhere, records in each of 16 states, stuck, oldest work in progress or -1}
-- `elsewhere`: ids that this node listed but could not read, because their slot moves; the caller asks for them.
--
-- Most records do not match, so a condition looks at as little as it can. A state is in the first byte, and Lua
-- keeps no copy of a single byte. All times are in the first 35 bytes, and the value ends within the first 308; in the
-- compact layout, which most records have, it follows the times.
local before, what, want, first_bytes = tonumber(ARGV[4]), ARGV[5], cmsgpack.unpack(ARGV[6]), ARGV[7]
local elsewhere, found, matched = {}, {}, 0
local counts, stuck, oldest = {}, 0, -1
for state = 1, 16 do counts[state] = 0 end
local WHOLE = 319
local HEAD = want.scope and WHOLE or want.value and 35 + #want.value or 34
local few = want.states or want.stuck and '1' -- the states that are looked for
local byte, sub, unpack_, floor, pcall_ = string.byte, string.sub, struct.unpack, math.floor, redis.pcall

-- Times of a record, from its head: created, changed, end of the lease, end of retention; and where its owner begins.
local function times(text, compact, state)
  if compact then
    local fence, after, span = unpack_('<I7I4I5', text, 4)
    local created = floor(fence / 1000)
    local changed = created + after
    if state == IN_PROGRESS then return created, changed, changed + span, 0 end
    return created, changed, 0, changed + span
  end
  local created, changed, at = unpack_('<I6I6', text, 12)
  local lease, expires = 0, 0
  if leased(state) then lease, at = unpack_('<I6', text, at) end
  if ends(state) then expires, at = unpack_('<I6', text, at) end
  return created, changed, lease, expires, at
end

-- Where the length of the value is.
local function value_place(text, compact, at)
  return compact and 36 or at + 1 + byte(text, at)
end

local function starts(text, prefix, at)
  return sub(text, at, at + #prefix - 1) == prefix
end

local function in_scope(key, text, flags, from)
  if bit.band(flags, SCOPE) == 0 then return false end
  if #text < from + #want.scope - 1 then text = redis.call('GET', key) end
  return text and starts(text, want.scope, from)
end

local function matches(key, text)
  local first, flags = byte(text, 1, 2)
  local version, state = floor(first / 16), first % 16
  if version ~= 1 and version ~= 2 then error({err = 'VERSION the record has layout ' .. version}) end
  if few and byte(few, state + 1) ~= 49 then return end
  if want.stuck and state ~= IN_PROGRESS then return end
  if want.cause and flags % 8 ~= want.cause then return end
  local compact = version == 2
  if want.value then
    if not compact then
      text = redis.call('GETRANGE', key, '0', WHOLE)
    elseif byte(text, 36) ~= #want.value or not starts(text, want.value, 37) then
      return
    end
  end
  local created, changed, lease, expires, at = times(text, compact, state)
  if expires > 0 and expires <= now then return end
  if want.stuck and lease > now then return end
  if want.after and changed < want.after then return end
  if want.before and changed >= want.before then return end
  if want.newer and created < want.newer then return end
  if want.older and created > want.older then return end
  if want.value or want.scope then
    local place = value_place(text, compact, at)
    local length = byte(text, place)
    if want.value and not (length == #want.value and starts(text, want.value, place + 1)) then return end
    if want.scope and not in_scope(key, text, flags, place + length + 3) then return end
  end
  if want.error then
    if flags < ERROR then return end
    local row = load(key)
    if not row or not starts(row.error, want.error, 1) then return end
  end
  return state, changed, lease
end

local function right_id(key)
  if first_bytes == '' and not want.half then return true end
  local last = before + #first_bytes
  return sub(key, before + 1, last) == first_bytes
    and (not want.half or floor(byte(key, last + 1) / 16) == want.half)
end

-- The pattern ends with its star: comparing the end of each key there takes as long as the rest of the SCAN.
local page = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[1], 'COUNT', ARGV[3])
local keys = page[2]
for at = 1, #keys do
  local key = keys[at]
  if #key == before + 33 and byte(key, -1) == 125 and right_id(key) then
    local text = pcall_('GETRANGE', key, '0', few and '0' or HEAD)
    if few and type(text) == 'string' and text ~= '' then
      text = byte(few, byte(text) % 16 + 1) == 49 and pcall_('GETRANGE', key, '0', HEAD) or ''
    end
    if type(text) ~= 'string' then
      elsewhere[#elsewhere + 1] = sub(key, before + 1, before + 32)
    elseif text ~= '' then
      local state, changed, lease = matches(key, text)
      if state then
        matched = matched + 1
        if what == 'rows' then
          local row, whole = load(key)
          if row then
            found[#found + 1] = sub(key, before + 1, before + 32)
            found[#found + 1] = sub(whole, 1, row.size)
          end
        elseif what == 'survey' then
          counts[state + 1] = counts[state + 1] + 1
          if state == IN_PROGRESS then
            if lease <= now then stuck = stuck + 1 end
            if oldest < 0 or changed < oldest then oldest = changed end
          end
        end
      end
    end
  end
end
if what == 'rows' then return {now, page[1], elsewhere, found} end
if what == 'count' then return {now, page[1], elsewhere, matched} end
counts[17], counts[18] = stuck, oldest
return {now, page[1], elsewhere, counts}
