-- wrk ... -s post.lua -- BODY_BYTES KEY: one chat request of that size, over and over
function init(args)
  local size = tonumber(args[1])
  local head = '{"model":"mock-model","messages":[{"role":"user","content":"'
  local foot = '"}]}'
  wrk.method = "POST"
  wrk.body = head .. string.rep("a", size - #head - #foot) .. foot
  wrk.headers["content-type"] = "application/json"
  wrk.headers["authorization"] = "Bearer " .. args[2]
end
