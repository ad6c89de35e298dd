% A tank with a hole and a tap: keep the level at 1. Started by: octave-cli --quiet tank.m
addpath(fileparts(mfilename('fullpath')));
shoal_client('connect', 0, 5, 0, 1);
while shoal_client('begin')
  level = 2 * mod(shoal_client('seed') * 0.618034, 1);
  shoal_client('observe', level);
  step = 0;
  tap = shoal_client('action');
  while ~isempty(tap)
    step = step + 1;
    level = min(max(level + 0.1 * (tap - 0.5 * sqrt(max(level, 0))), 0), 5);
    shoal_client('result', level, -abs(level - 1), false, step == 50);
    tap = shoal_client('action');
  end
end
