% The lines protocol for a simulator in GNU Octave or MATLAB: a state machine in one function.
%
%   shoal_client("connect", low, high, action_low, action_high)
%   while shoal_client("begin")                        a new episode is wanted; shoal_client("seed") is its seed
%     shoal_client("observe", obs);
%     while ! isempty(action = shoal_client("action"))   empty: the episode is over, or shoal has left
%       shoal_client("result", obs, reward, terminated, truncated);
%     end
%   end
%
% It speaks over stdin and stdout; print to stderr with fprintf(2, ...).
function answer = shoal_client(what, varargin)
  persistent seed pending
  answer = [];
  switch what
    case "connect"
      [low, high, action_low, action_high] = varargin{:};
      say(sprintf('{"shoal":1,"observation":{"type":"Box","low":%s,"high":%s},"action":{"type":"Box","low":%s,"high":%s}}', ...
                  row(low), row(high), row(action_low), row(action_high)));
      hear();
      pending = "";
    case "begin"
      line = pending;
      if isempty(line), line = hear(); end
      pending = "";
      answer = ischar(line) && ! isempty(strfind(line, '"reset"'));
      seed = -1;
      found = regexp(line, '"seed":(\d+)', "tokens");
      if ! isempty(found), seed = str2double(found{1}{1}); end
    case "seed"
      answer = seed;
    case "observe"
      say(sprintf('{"obs":%s}', row(varargin{1})));
    case "action"
      line = hear();
      found = regexp(line, '"step":\[?([^\]}]*)', "tokens");
      if isempty(found), pending = line; return; end
      answer = str2num(["[" found{1}{1} "]"]);
    case "result"
      [obs, reward, terminated, truncated] = varargin{:};
      words = {"false", "true"};
      say(sprintf('{"obs":%s,"reward":%.17g,"terminated":%s,"truncated":%s}', ...
                  row(obs), reward, words{terminated + 1}, words{truncated + 1}));
  end
end

function say(line)
  fprintf(1, "%s\n", line);
  fflush(stdout);
end

function line = hear()
  line = fgetl(stdin);
  if ! ischar(line), line = ""; end
end

function text = row(values)
  text = ["[" strjoin(arrayfun(@(x) sprintf("%.17g", x), values(:)', "UniformOutput", false), ",") "]"];
end
