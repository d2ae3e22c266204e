-- record_step: owner, fence, name, kind, state, attempt, position, undo, delay, fingerprint [, result]
-- KEYS: record, run
local text = redis.call('GET', KEYS[1])
if not text then return 2 end
local owner, fence, name = ARGV[1], tonumber(ARGV[2]), 's' .. ARGV[3]
local kind, state, delay, result = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[9]), ARGV[11]

local function pack(created)
  return struct.pack('<BBBI7I4I4I6I6I6', kind, state, ARGV[8] + (result and 2 or 0), fence, ARGV[6], ARGV[7],
      created, now, delay > 0 and now + delay or 0)
    .. struct.pack('<Bc0', #ARGV[10], ARGV[10]) .. (result or '')
end

-- The common case, fast: the owner of a record in progress records a step that is new.
local head = string.byte(text)
local known, holder, _
if head == 32 then
  known, _, _, holder = struct.unpack('<I7I4I5c16', text, 4)
elseif head == 16 then
  known = struct.unpack('<I7', text, 5)
  holder = string.sub(text, 31, 30 + string.byte(text, 30))
end
if known == fence and holder == owner and redis.call('HSETNX', KEYS[2], name, pack(now)) == 1 then
  return 0
end

-- @record
-- @include runs
local row = parse(text)
if not owns(row, owner, fence) or row.state ~= IN_PROGRESS then return LOST end
local step = step_of(KEYS[2], ARGV[3])
if step and (step.kind ~= kind or step.print ~= ARGV[10]) then return REFUSED end
if step and step.state == DONE then
  local same = step.fence == fence and state == DONE and step.result == result
  if not same then return REFUSED end
  redis.call('HSET', KEYS[2], name, redis.call('HGET', KEYS[2], name)) -- so that WAIT covers this step
  return OK
end
if step and step.state == WAITING and state == WAITING then return OK end -- resumed: it is due when it was
redis.call('HSET', KEYS[2], name, pack(step and step.created or now))
return OK
