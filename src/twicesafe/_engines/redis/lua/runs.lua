-- The steps of a run: a hash in the slot of its record. Included by the scripts of durable runs.
--
--   f function   a arguments   c 1: the completer may run it   k keep it until then, although no run has started
--   s<name>      a step: 1 kind  1 state  1 undo (1) and result (2)  7 fence  4 attempt  4 position
--                6 created_at  6 changed_at  6 due_at  1+n fingerprint  the rest: result
--
-- It has no TTL: it is removed after its record (drop.lua). Python reads it in _engines/redis/run_layout.py.
local DONE, STARTED, WAITING, WAIT = 0, 1, 2, 3
local STEP = '<BBBI7I4I4I6I6I6'

local function pack_step(s)
  return struct.pack(STEP, s.kind, s.state, (s.undo and 1 or 0) + (s.result and 2 or 0), s.fence, s.attempt,
    s.position, s.created, s.changed, s.due) .. struct.pack('<Bc0', #s.print, s.print) .. (s.result or '')
end

local function unpack_step(text)
  local s, flags, at = {}, nil, nil
  s.kind, s.state, flags, s.fence, s.attempt, s.position, s.created, s.changed, s.due, at =
    struct.unpack(STEP, text)
  s.print, at = struct.unpack('<Bc0', text, at)
  s.undo = flags % 2 == 1
  if flags > 1 then s.result = string.sub(text, at) end
  return s
end

local function step_of(run, name)
  local text = redis.call('HGET', run, 's' .. name)
  if text then return unpack_step(text) end
end

-- When the completer looks at this run again. In a Cluster the index is in another slot: then `KEYS` has no
-- such key, and the caller writes it (due_mark.lua).
local function look_after(index, functions, id, delay, name)
  if not index then return end
  redis.call('ZADD', index, string.format('%.3f', us / 1000 + delay), id)
  if name then redis.call('HSET', functions, id, name) end
end

-- A request that comes so late that the index may have forgotten its mark is refused; the caller repeats it.
local function late(by) return by ~= '' and now > tonumber(by) end
local LATE = {9}
