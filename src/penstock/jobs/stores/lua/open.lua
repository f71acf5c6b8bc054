-- Make the queue, or refuse one that another version has made.  ARGV: the version of its schema, the server's run id.
-- Another life of the server is another generation: it may have forgotten its last second, with the fences given in it.
local schema = call('HGET', META, 'schema')
if schema and schema ~= ARGV[1] then return schema end
if not schema then call('HSET', META, 'schema', ARGV[1]) end
if call('HGET', META, 'server') ~= ARGV[2] then
  call('HSET', META, 'server', ARGV[2])
  call('HINCRBY', META, 'generation', 1)
end
return ARGV[1]
