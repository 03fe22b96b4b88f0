"""The atomic operations of a directory in Redis, as Lua scripts for ``EVAL``.

Each names all its keys, so that a cluster can run it. The text is sent every time: servers cache
scripts by digest, and a restarted one would not have it.
"""

from __future__ import annotations

MARK_BYTES = 8
"""Bytes of the mark of a membership: a random number."""

GENERATION_DIGITS = 20
"""Digits of a generation: padded, because Lua compares strings by locale, digits alike in all."""

ENTRIES = b"""
local mark, dead, ttl, added = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
for i, key in ipairs(KEYS) do
  local old = redis.call('GET', key) or ''
  local new = {}
  for at = 1, #old, 8 do
    local one = string.sub(old, at, at + 7)
    if one ~= mark and not string.find(dead, one, 1, true) then new[#new + 1] = one end
  end
  if i <= added then new[#new + 1] = mark end
  if #new > 64 then table.remove(new, 1) end
  if #new > 0 then redis.call('SET', key, table.concat(new), 'EX', ttl)
  elseif #old > 0 then redis.call('DEL', key) end
end
return 1
"""
"""KEYS: chunks, first those added, then those removed. ARGV: the mark of the membership, the void
marks, seconds that an entry lives, the number of chunks added."""

JOIN = b"""
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known and string.sub(known, 9, 28) > ARGV[3] and redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if redis.call('EXISTS', ARGV[6] .. name) == 0 then redis.call('HDEL', KEYS[1], name) end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ARGV[3] .. ARGV[4])
redis.call('SET', KEYS[2], ARGV[2] .. ':0', 'PX', ARGV[5])
redis.call('SET', KEYS[3], ARGV[3], 'EX', ARGV[7])
return 1
"""
"""KEYS: the members, the sign of life, the last life. ARGV: name, mark, generation, addresses,
milliseconds of a sign of life, the prefix of their keys, seconds that the last life is kept."""

ALIVE = b"""
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or string.sub(known, 1, 8) ~= ARGV[2] then return 0 end
local sign = redis.call('GET', KEYS[2])
if not sign or string.sub(sign, 1, 8) ~= ARGV[2] then return 0 end
local last, now = tonumber(string.sub(sign, 10)), tonumber(ARGV[3])
if ARGV[5] == '1' then
  if now > last + 1 then return 0 end
  if now <= last then now = last end
elseif now > last then return 0
else now = last end
redis.call('SET', KEYS[2], ARGV[2] .. ':' .. string.format('%.0f', now), 'PX', ARGV[4])
return last + 1
"""
"""KEYS: as for JOIN. ARGV: name, mark, sequence, milliseconds, 1 for a report. The answer is 0 if
the node must join again, or the sequence of the report before, plus 1."""

LEAVE = b"""
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known and string.sub(known, 1, 8) == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('DEL', KEYS[2])
end
return 1
"""
"""KEYS, and the name and mark in ARGV: as for JOIN."""

MEMBERS = b"""
local all = redis.call('HGETALL', KEYS[1])
local found = {}
for i = 1, #all, 2 do
  local sign = redis.call('GET', ARGV[1] .. all[i])
  if sign and string.sub(sign, 1, 8) == string.sub(all[i + 1], 1, 8) then
    found[#found + 1] = all[i]
    found[#found + 1] = all[i + 1]
  end
end
return found
"""
"""KEYS: the members. ARGV: the prefix of the keys of signs of life. The answer is a list of the
name
of each live member and the value that JOIN stored."""
