-- A job's result.  ARGV: its id.  The answer: the result, its media type, its output or ''; nil where it has none.
refuse_on_replica()
local job = load(ARGV[1])
write_indexes()
if not job or job.state ~= 'succeeded' then return false end
local found = call('HMGET', PREFIX .. 'job:' .. job.id, 'result', 'result_type')
return {found[1] or '', found[2] or '', job.output or ''}
