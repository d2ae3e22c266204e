local now = math.floor(us / 1000)

-- A record outlives its retention by this much, spread out, so that a million of them do not end in
-- one moment, and so that the next claim can still tell why it starts afresh.
local function grace(fence) return 30000 + fence % 30000 end

-- Wakes who waits for this key, wherever. A user who may not publish is no reason to fail.
local function announce(key)
  if PUBLISH ~= '' then redis.pcall(PUBLISH, key, '') end
end
