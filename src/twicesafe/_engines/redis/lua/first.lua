local now = math.floor(us / 1000)

-- Milliseconds that a record is kept after its retention: spread out, so that a million records do not
-- expire at once, and so that the next claim can still see its cause (retention_expired).
local function grace(fence) return 30000 + fence % 30000 end

-- Wakes the waiters of this key in all processes. If this user may not publish, the script continues.
local function announce(key)
  if PUBLISH ~= '' then redis.pcall(PUBLISH, key, '') end
end
