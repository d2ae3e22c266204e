-- What wrk sends: KEY is a prefix for a new key per request ("fresh:…"), one key for all, or "none".
local key = os.getenv("KEY")
local fresh = string.match(key, "^fresh:(.*)$")
local count = 0
local body = '{"amount": 129900, "currency": "EUR", "items": ["a", "b"]}'
local headers = {["Content-Type"] = "application/json", ["Authorization"] = "Bearer bench"}

function setup(thread)
   numbers = (numbers or 0) + 1
   thread:set("number", numbers)
end

function request()
   if fresh then
      count = count + 1
      headers["Idempotency-Key"] = fresh .. "-" .. number .. "-" .. count
   elseif key ~= "none" then
      headers["Idempotency-Key"] = key
   end
   return wrk.format("POST", "/charges", headers, body)
end

function done(summary, latency, requests)
   local bad = summary.errors
   local lost = bad.connect + bad.read + bad.write + bad.timeout
   io.write(string.format("RESULT %d %d %d %d\n", summary.requests, summary.duration, bad.status, lost))
end
