select host, token, extract(epoch from limited_until - tireless_now())::float8 as seconds
  from forge_limit
 where limited_until > tireless_now()
