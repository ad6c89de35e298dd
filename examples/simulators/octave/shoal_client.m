% The lines protocol for a simulator in GNU Octave or MATLAB: a state machine in one function.
%
%   shoal_client('connect', low, high, action_low, action_high)
%   while shoal_client('begin')                  a new episode is wanted; shoal_client('seed') is its seed
%     shoal_client('observe', obs);
%     action = shoal_client('action');
%     while ~isempty(action)                     empty: the episode is over, or shoal has left
%       shoal_client('result', obs, reward, terminated, truncated);
%       action = shoal_client('action');
%     end
%   end
%
% It speaks over stdin and stdout; print to stderr with fprintf(2, ...).
function answer = shoal_client(what, varargin)
  persistent seed pending
  answer = [];
  switch what
    case 'connect'
      [low, high, action_low, action_high] = varargin{:};
      form = '{"shoal":1,"observation":{"type":"Box","low":%s,"high":%s},"action":{"type":"Box","low":%s,"high":%s}}';
      say(sprintf(form, row(low), row(high), row(action_low), row(action_high)));
      hear();
      pending = '';
    case 'begin'
      line = pending;
      if isempty(line), line = hear(); end
      pending = '';
      answer = ~isempty(strfind(line, '"reset"'));
      seed = -1;
      found = regexp(line, '"seed":\s*(\d+)', 'tokens');
      if ~isempty(found), seed = str2double(found{1}{1}); end
    case 'seed'
      answer = seed;
    case 'observe'
      say(sprintf('{"obs":%s}', row(varargin{1})));
    case 'action'
      line = hear();
      found = regexp(line, '"step":\s*\[?([^\]}]*)', 'tokens');
      if isempty(found), pending = line; return; end
      answer = str2num(['[' found{1}{1} ']']);
    case 'result'
      [obs, reward, terminated, truncated] = varargin{:};
      words = {'false', 'true'};
      say(sprintf('{"obs":%s,"reward":%.17g,"terminated":%s,"truncated":%s}', ...
                  row(obs), reward, words{terminated + 1}, words{truncated + 1}));
  end
end

function say(line)
  fprintf(1, '%s\n', line);
  if exist('OCTAVE_VERSION', 'builtin'), fflush(stdout); end
end

function line = hear()
  % Not fgetl: Octave's reads one letter more than the line has, and so waits for the message after it.
  try
    line = input('', 's');
  catch  % shoal has left
    line = '';
  end
end

function text = row(values)
  text = ['[' strjoin(arrayfun(@(x) sprintf('%.17g', x), values(:)', 'UniformOutput', false), ',') ']'];
end
